"""The tiny autoencoder: against its layout written out frame by frame, and streams of it against whole clips."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from wan_models import assert_near, noise

from streamsynth.errors import StreamSynthError
from streamsynth.models.wan.tiny_vae import TAEW_2_2, TinyVae, TinyVaeConfig
from streamsynth.models.wan.tiny_vae_weights import build_tiny_vae, tiny_vae_config, tiny_vae_weights

SMALL = TinyVaeConfig(latent_channels=5, decoder_widths=(8, 6, 5, 4), encoder_width=6)
EVEN = TinyVaeConfig(
    latent_channels=5,
    decoder_widths=(8, 6, 4),
    decoder_blocks=(2, 0, 1),
    encoder_width=6,
    encoder_blocks=1,
    growth=(1, 3),
    patch_size=2,
    first_pictures=3,
)
STREAMED = 1e-5


def published_names(config: TinyVaeConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a file as TAEHV's lists of layers number them."""
    shapes: dict[str, tuple[int, ...]] = {}
    pixels, width, wide = 3 * config.patch_size**2, config.encoder_width, config.decoder_widths

    def conv(name: str, outputs: int, inputs: int, kernel: int, *, bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs, kernel, kernel)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    def block(name: str, size: int) -> None:
        for place, inputs in ((0, 2 * size), (2, size), (4, size)):
            conv(f"{name}.conv.{place}", size, inputs, 3, bias=True)

    conv("encoder.0", width, pixels, 3, bias=True)
    place = 2
    for frames in reversed(config.growth):
        conv(f"encoder.{place}.conv", width, frames * width, 1, bias=False)
        conv(f"encoder.{place + 1}", width, width, 3, bias=False)
        for number in range(config.encoder_blocks):
            block(f"encoder.{place + 2 + number}", width)
        place += 2 + config.encoder_blocks
    conv(f"encoder.{place}", config.latent_channels, width, 3, bias=True)
    conv("decoder.1", wide[0], config.latent_channels, 3, bias=True)
    place = 3
    for stage, count in enumerate(config.decoder_blocks):
        for number in range(count):
            block(f"decoder.{place + number}", wide[stage])
        place += count
        if stage < len(config.growth):
            conv(f"decoder.{place + 1}.conv", config.growth[stage] * wide[stage], wide[stage], 1, bias=False)
            conv(f"decoder.{place + 2}", wide[stage + 1], wide[stage], 3, bias=False)
            place += 3
    conv(f"decoder.{place + 1}", pixels, wide[-1], 3, bias=True)
    return shapes


def random_file(config: TinyVaeConfig, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * torch.Size(shape[1:]).numel() ** -0.5
        for name, shape in published_names(config).items()
    }


def decoded_by_hand(tensors: dict[str, Tensor], latents: list[Tensor], growth: tuple[int, ...]) -> list[Tensor]:
    """One latent frame (1, channels, height, width) after another through the list of layers, depth first."""
    memory: dict[int, Tensor] = {}

    def conv(name: str, x: Tensor) -> Tensor:
        weight = tensors[f"{name}.weight"]
        return F.conv2d(x, weight, tensors.get(f"{name}.bias"), padding=weight.shape[2] // 2)

    def onward(x: Tensor, place: int) -> list[Tensor]:
        name, (stage, layer) = f"decoder.{place}", divmod(place - 3, 6)
        if place == 0:
            return onward(torch.tanh(x / 3) * 3, 1)
        if place == 1:
            return onward(conv(name, x).relu(), 3)
        if stage == 3:
            return [conv("decoder.22", x.relu()).clamp(0, 1)]
        if layer < 3:
            past, memory[place] = memory.get(place, torch.zeros_like(x)), x
            hidden = conv(f"{name}.conv.0", torch.cat((x, past), 1)).relu()
            return onward((conv(f"{name}.conv.4", conv(f"{name}.conv.2", hidden).relu()) + x).relu(), place + 1)
        if layer == 3:
            return onward(F.interpolate(x, scale_factor=2), place + 1)
        if layer == 4:
            frames = conv(f"{name}.conv", x).chunk(growth[stage], 1)
            return [made for frame in frames for made in onward(frame, place + 1)]
        return onward(conv(name, x), place + 1)

    return [picture for frame in latents for picture in onward(frame, 0)]


def built(config: TinyVaeConfig, seed: int = 0) -> TinyVae:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    torch.manual_seed(seed)
    made = TinyVae(config)
    return build_tiny_vae(config, made.state_dict(), "random weights")


@pytest.fixture(scope="module", params=[SMALL, EVEN], ids=["first-alone", "even"])
def vae(request: pytest.FixtureRequest) -> TinyVae:
    return built(request.param)


def test_it_decodes_as_its_layout_written_out_frame_by_frame() -> None:
    """The first latent frame's pictures but the last are left out, so that T frames are 1 + 4(T - 1) pictures (V33)."""
    tensors = random_file(SMALL)
    vae = build_tiny_vae(SMALL, tiny_vae_weights(tensors, SMALL), "the file")
    latents = noise(1, 5, 3, 4, 6)
    expected = torch.stack(decoded_by_hand(tensors, list(latents.unbind(2)), SMALL.growth), 2)[:, :, 3:] * 2 - 1
    made = vae.decode_clip(latents)
    assert made.shape == (1, 3, 9, 32, 48)
    assert 0.1 < (made.abs() < 1).float().mean() < 1  # Some of it is clipped, some is not.
    assert_near(made, expected)


@pytest.mark.parametrize("config", [TinyVaeConfig(), TAEW_2_2, SMALL, EVEN])
def test_every_tensor_of_a_layout_has_a_place_and_every_place_a_tensor(config: TinyVaeConfig) -> None:
    tensors = {name: torch.empty(shape, device="meta") for name, shape in published_names(config).items()}
    if config.latent_channels != 5:
        assert tiny_vae_config(tensors) == config
        assert list(tensors)[-2:] == ["decoder.22.weight", "decoder.22.bias"]
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in TinyVae(config).state_dict().items()}
    assert {name: tensor.shape for name, tensor in tiny_vae_weights(tensors, config).items()} == expected


def test_growth_weights_for_more_frames_are_cut_to_the_last() -> None:
    """TAEHV's own files have two frames where Wan's first stage makes one."""
    tensors = random_file(SMALL)
    last = tensors["decoder.7.conv.weight"]
    tensors["decoder.7.conv.weight"] = torch.cat((torch.full_like(last, 9.0), last))
    state = tiny_vae_weights(tensors, SMALL)
    assert torch.equal(state["decoder.stages.0.grow.weight"], last[:, :, 0, 0])


CHUNKS = st.lists(st.integers(0, 5), min_size=1, max_size=4)


def cut(values: Tensor, lengths: list[int]) -> list[Tensor]:
    return list(values.split([*lengths, values.shape[2] - sum(lengths)], 2))


@settings(max_examples=10, deadline=None)
@given(lengths=CHUNKS)
def test_a_stream_in_chunks_of_any_length_is_as_the_whole_clip(vae: TinyVae, lengths: list[int]) -> None:
    latents = noise(2, 5, 20, 2, 3)
    layout = vae.layout
    pictures = noise(2, 3, layout.picture_count(7), 16, 24, seed=2).clamp(-1, 1)
    decoders, encoders = ([opened() for _ in range(2)] for opened in (vae.open_decoder, vae.open_encoder))
    decoded = torch.cat([vae.decode(piece, decoders) for piece in cut(latents, lengths)], 2)
    assert decoded.shape[2] == layout.picture_count(20)
    assert_near(decoded, vae.decode_clip(latents), STREAMED)
    short = [min(length, 4) for length in lengths]
    encoded = torch.cat([vae.encode(piece, encoders) for piece in cut(pictures, short)], 2)
    assert encoded.shape[2] == 7
    assert_near(encoded, vae.encode_clip(pictures), STREAMED)


def test_even_streams_share_a_batch_at_any_positions_and_a_reset_row_starts_anew() -> None:
    vae = built(EVEN)
    latents = noise(2, 5, 6, 2, 3)
    whole = vae.decode_clip(latents)
    states = [vae.open_decoder() for _ in range(2)]
    vae.decode(latents[:1, :, :3], states[:1])
    made = vae.decode(torch.cat([latents[:1, :, 3:5], latents[1:, :, :2]]), states)
    assert_near(made[:1], whole[:1, :, 9:15], STREAMED)
    assert_near(made[1:], whole[1:, :, :6], STREAMED)
    states[0].reset()
    made = vae.decode(torch.cat([latents[:1, :, :1], latents[1:, :, 2:3]]), states)
    assert_near(made[:1], whole[:1, :, :3], STREAMED)
    assert_near(made[1:], whole[1:, :, 6:9], STREAMED)


def test_where_the_first_frame_is_one_picture_streams_begin_together_or_not_at_all() -> None:
    vae = built(SMALL)
    states = [vae.open_decoder() for _ in range(2)]
    vae.decode(noise(1, 5, 1, 2, 3), states[:1])
    with pytest.raises(StreamSynthError, match="in the same phase"):
        vae.decode(noise(2, 5, 1, 2, 3), states)


def test_sizes_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(StreamSynthError, match="decoder_widths"):
        TinyVaeConfig(decoder_widths=(8, 4))
    with pytest.raises(StreamSynthError, match="first_pictures is 2; it must be 1 or 4"):
        TinyVaeConfig(first_pictures=2)
    with pytest.raises(StreamSynthError, match="pictures is 4; it must be 1 more than a multiple of 4"):
        built(SMALL).encode_clip(torch.zeros(1, 3, 4, 8, 8))
    with pytest.raises(StreamSynthError, match=r"unknown decoder\.5\.conv\.1\.weight"):
        build_tiny_vae(SMALL, tiny_vae_weights({"decoder.5.conv.1.weight": torch.zeros(1)}, SMALL), "it")
