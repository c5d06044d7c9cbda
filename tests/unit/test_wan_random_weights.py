"""Random weights for benches must be as calm as trained ones: no size of numbers that a real model would not meet."""

import torch
from wan_models import noise

from streamsynth.models.wan.attention import FullAttention
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.random_weights import with_random_weights
from streamsynth.models.wan.tiny_vae import TinyVae, TinyVaeConfig
from streamsynth.models.wan.vae import WanVae
from streamsynth.models.wan.vae_config import VaeConfig


@torch.inference_mode()
def test_activations_keep_their_scale_and_the_same_seed_gives_the_same_weights() -> None:
    config = WanConfig(num_attention_heads=2, attention_head_dim=12, text_dim=16, ffn_dim=48, num_layers=6, freq_dim=16)
    flows = []
    for _ in range(2):
        with torch.device("meta"):
            model = WanTransformer(config)
        model = with_random_weights(model, seed=3)
        turn = model.rotary(torch.arange(2)[None], 4, 4)
        prompt = model.prompt_context(noise(1, 5, 16))
        flows.append(model(noise(1, 16, 2, 4, 4), torch.tensor([[500.0]]), prompt, turn, FullAttention()))
    assert torch.equal(*flows)
    assert 0.1 < flows[0].std() < 10


@torch.inference_mode()
def test_autoencoders_paint_something() -> None:
    with torch.device("meta"):
        vaes = [WanVae(VaeConfig(base_dim=4, num_res_blocks=1)), TinyVae(TinyVaeConfig(decoder_widths=(8, 8, 8, 8)))]
    for vae in vaes:
        pictures = with_random_weights(vae).decode_clip(noise(1, 16, 2, 2, 2))
        assert pictures.isfinite().all()
        assert pictures.std() > 0.05
