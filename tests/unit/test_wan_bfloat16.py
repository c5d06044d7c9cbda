"""Half precision: how far bfloat16 is from float32, in the streams as in whole clips."""

import torch
from wan_models import RESIDUAL_VAE, SMALL, TINY_VAE, noise, ours, reference_transformer, reference_vae

from streamsynth.models.wan.attention import FullAttention
from streamsynth.models.wan.tiny_vae import TinyVae, TinyVaeConfig
from streamsynth.models.wan.tiny_vae_weights import build_tiny_vae
from streamsynth.models.wan.vae import WanVae
from streamsynth.models.wan.vae_config import VaeConfig
from streamsynth.models.wan.vae_weights import build_vae
from streamsynth.models.wan.weights import build_transformer

HALF = torch.bfloat16
ERROR = 0.03
"""Root mean square, of what the float32 values have; one rounding is 0.002."""


def distance(made: torch.Tensor, expected: torch.Tensor) -> float:
    assert made.dtype is HALF
    return float((made.float() - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@torch.inference_mode()
def test_the_transformers_flow_stays_near() -> None:
    reference = reference_transformer(SMALL)
    exact = ours(reference)
    rounded = build_transformer(exact.config, reference.state_dict(), "the reference", dtype=HALF)
    latents, text, steps = noise(1, 4, 3, 6, 8), noise(1, 7, 24, seed=2), torch.tensor([[900.0, 500.0, 10.0]])
    turn = exact.rotary(torch.arange(3)[None], 6, 8)
    expected = exact(latents, steps, exact.prompt_context(text), turn, FullAttention())
    made = rounded(latents.to(HALF), steps, rounded.prompt_context(text.to(HALF)), turn, FullAttention())
    assert distance(made, expected) < ERROR


@torch.inference_mode()
def test_the_autoencoders_pictures_stay_near_and_streams_as_near_as_clips() -> None:
    pairs: list[tuple[WanVae | TinyVae, WanVae | TinyVae]] = []
    for options in (TINY_VAE, RESIDUAL_VAE):
        reference = reference_vae(options)
        config = VaeConfig.from_hf(dict(reference.config))
        exact, rounded = (build_vae(config, reference.state_dict(), "it", dtype=kind) for kind in (torch.float32, HALF))
        pairs.append((exact, rounded))
    tiny = TinyVaeConfig(latent_channels=3, decoder_widths=(8, 6, 5, 4), encoder_width=6)
    torch.manual_seed(0)
    weights = TinyVae(tiny).state_dict()
    pairs.append((build_tiny_vae(tiny, weights, "it"), build_tiny_vae(tiny, weights, "it", dtype=HALF)))
    latents = noise(1, 3, 3, 2, 3)
    for exact, rounded in pairs:
        expected, state = exact.decode_clip(latents), rounded.open_decoder()
        streamed = torch.cat([rounded.decode(piece.to(HALF), [state]) for piece in latents.split(1, 2)], 2)
        assert distance(rounded.decode_clip(latents.to(HALF)), expected) < ERROR
        assert distance(streamed, expected) < ERROR
