"""Wan's autoencoder against diffusers', and streams of it against whole clips."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wan_models import RESIDUAL_VAE, TINY_VAE, assert_near, noise, our_vae, reference_vae

from streamsynth.errors import StreamSynthError
from streamsynth.models.wan.streaming import StreamState
from streamsynth.models.wan.vae import WanVae
from streamsynth.models.wan.vae_config import WAN_2_2_VAE, VaeConfig

STREAMED = 1e-5
"""Rule 5: of full scale, in float32."""
KINDS = {"wan2.1": TINY_VAE, "wan2.2": RESIDUAL_VAE}
FRAMES, PICTURES = 6, 17


@pytest.fixture(scope="module", params=KINDS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def vae(options: dict[str, Any]) -> WanVae:
    return our_vae(reference_vae(options))


@pytest.fixture(scope="module")
def latents() -> torch.Tensor:
    return noise(3, 3, FRAMES, 2, 3)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    return noise(3, 3, PICTURES, 32, 48, seed=4).clamp(-1, 1)


def normalised(reference: Any, raw: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(reference.config[f"latents_{name}"]).view(1, -1, 1, 1, 1) for name in ("mean", "std"))
    return (raw - mean) / std


@torch.inference_mode()
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_it_decodes_as_the_reference_does(options: dict[str, Any], frames: int) -> None:
    """V33: T latent frames are 1 + 4(T - 1) pictures."""
    reference = reference_vae(options)
    vae = our_vae(reference)
    raw = noise(2, 3, frames, 2, 3)
    made = vae.decode_clip(normalised(reference, raw))
    assert made.shape[2] == 1 + 4 * (frames - 1) == vae.layout.picture_count(frames)
    assert_near(made, reference.decode(raw).sample)


@torch.inference_mode()
@pytest.mark.parametrize("count", [1, 5, 13])
def test_it_encodes_as_the_reference_does(options: dict[str, Any], count: int) -> None:
    reference = reference_vae(options)
    pictures = noise(2, 3, count, 32, 48)
    expected = normalised(reference, reference.encode(pictures).latent_dist.mode())
    assert_near(our_vae(reference).encode_clip(pictures), expected)


@torch.inference_mode()
@pytest.mark.parametrize("flags", [[True, False, True], [True, True, False], [False, False, False]])
def test_time_may_be_halved_at_other_stages(options: dict[str, Any], flags: list[bool]) -> None:
    """The reference always encodes pictures in fours, so only decoding can be compared."""
    reference = reference_vae(options | {"temperal_downsample": flags, "scale_factor_temporal": 2 ** sum(flags)})
    raw = noise(1, 3, 3, 2, 3)
    assert_near(our_vae(reference).decode_clip(normalised(reference, raw)), reference.decode(raw).sample)


CHUNKS = st.lists(st.integers(0, 6), min_size=1, max_size=4)


def cut(values: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    """Along time, by these lengths, the rest at last."""
    bounds, rest = [0], values.shape[2]
    for length in lengths:
        bounds.append(min(bounds[-1] + length, rest))
    return [values[:, :, start:end] for start, end in zip(bounds, [*bounds[1:], rest], strict=True)]


@settings(max_examples=6, deadline=None)
@given(lengths=CHUNKS)
def test_a_stream_in_chunks_of_any_length_decodes_as_the_whole_clip_does(
    vae: WanVae, latents: torch.Tensor, lengths: list[int]
) -> None:
    states = [vae.open_decoder() for _ in latents]
    made = torch.cat([vae.decode(piece, states) for piece in cut(latents, lengths)], 2)
    assert_near(made, vae.decode_clip(latents), STREAMED)
    assert [state.units for state in states] == [FRAMES] * 3


@settings(max_examples=6, deadline=None)
@given(lengths=CHUNKS)
def test_a_stream_in_chunks_of_any_length_encodes_as_the_whole_clip_does(
    vae: WanVae, pictures: torch.Tensor, lengths: list[int]
) -> None:
    """V13: pictures that do not fill a latent frame wait in the state."""
    states = [vae.open_encoder() for _ in pictures]
    made = torch.cat([vae.encode(piece, states) for piece in cut(pictures, lengths)], 2)
    assert_near(made, vae.encode_clip(pictures), STREAMED)


@torch.inference_mode()
def test_sessions_join_and_leave_a_batch_with_states_of_their_own(vae: WanVae, latents: torch.Tensor) -> None:
    """V33: three streams, at different positions, in batches of any company and order, and one is reset midway."""
    whole = vae.decode_clip(latents)
    states = [vae.open_decoder() for _ in latents]
    done, made = [0, 0, 0], [[], [], []]
    for rows, count in (([0], 1), ([1], 2), ([0, 1], 2), ([2], 1), ([2, 0, 1], 1), ([1, 0], 1)):
        batch = torch.cat([latents[row : row + 1, :, done[row] : done[row] + count] for row in rows])
        out = vae.decode(batch, [states[row] for row in rows])
        for row, pictures in zip(rows, out, strict=True):
            made[row].append(pictures)
            done[row] += count
    for row in range(3):
        pictures = torch.cat(made[row], 1)
        assert_near(pictures, whole[row, :, : pictures.shape[1]], STREAMED)
    states[1].reset()
    assert_near(vae.decode(latents[2:], [states[1]]), whole[2:], STREAMED)


@torch.inference_mode()
def test_a_copied_state_is_a_snapshot_that_can_be_gone_back_to(vae: WanVae, latents: torch.Tensor) -> None:
    state = vae.open_decoder()
    vae.decode(latents[:1, :, :3], [state])
    snapshot = state.copy()
    once = vae.decode(latents[:1, :, 3:], [state])
    assert torch.equal(vae.decode(latents[:1, :, 3:], [snapshot.copy()]), once)
    assert torch.equal(vae.decode(latents[:1, :, 3:], [snapshot]), once)


def test_streams_that_cannot_go_together_are_refused_and_stay_as_they_were(vae: WanVae, latents: torch.Tensor) -> None:
    begun, opened = vae.open_decoder(), vae.open_decoder()
    vae.decode(latents[:1, :, :1], [begun])
    kept = begun.copy()
    cases: list[tuple[torch.Tensor, list[StreamState], str]] = [
        (latents[:2], [begun, opened], r"states is \[1, 0\]; it must be in the same phase"),
        (latents[:2], [begun], "states is 1; it must be one a row"),
        (latents[:1, :, :, :, :2], [begun], r"size is \(2, 2\); it must be that of the stream, \(2, 3\)"),
        (latents[:1, :2], [begun], "shape"),
    ]
    for values, states, message in cases:
        with pytest.raises(StreamSynthError, match=message):
            vae.decode(values, states)
    assert begun == kept
    with pytest.raises(StreamSynthError, match="pictures is 4; it must be 1 more than a multiple of 4"):
        vae.encode_clip(torch.zeros(1, 3, 4, 32, 48))
    with pytest.raises(StreamSynthError, match=r"size is \(30, 48\)"):
        vae.encode(torch.zeros(1, 3, 1, 30, 48), [vae.open_encoder()])


def test_settings_that_do_not_fit_each_other_are_refused() -> None:
    for setting, value in (("scale_factor_spatial", 16), ("latents_mean", [0.0]), ("attn_scales", [1.0])):
        with pytest.raises(StreamSynthError, match=setting):
            VaeConfig.from_hf({setting: value})
    with torch.device("meta"):
        assert WanVae(VaeConfig()).layout.channels == 16
        assert WanVae(WAN_2_2_VAE).layout.scale == 16
