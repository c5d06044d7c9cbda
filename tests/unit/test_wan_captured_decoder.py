"""Captured steps of both decoders against the decoders themselves."""

from __future__ import annotations

import pytest
import torch
from wan_models import noise

from streamsynth.errors import StreamSynthError
from streamsynth.models.wan.captured_decoder import CapturedDecoder, LatentSize
from streamsynth.models.wan.random_weights import with_random_weights
from streamsynth.models.wan.streaming import StreamingDecoder
from streamsynth.models.wan.tiny_vae import TinyVae, TinyVaeConfig
from streamsynth.models.wan.vae import WanVae
from streamsynth.models.wan.vae_config import VaeConfig

SIZES = (LatentSize(4, 2), LatentSize(2, 4))


def full() -> StreamingDecoder:
    with torch.device("meta"):
        vae = WanVae(VaeConfig(base_dim=4, num_res_blocks=1))
    return with_random_weights(vae)


def tiny() -> StreamingDecoder:
    with torch.device("meta"):
        vae = TinyVae(TinyVaeConfig(decoder_widths=(8, 8, 8, 8)))
    return with_random_weights(vae)


def captured(decoder: StreamingDecoder) -> CapturedDecoder:
    return CapturedDecoder(decoder, sizes=SIZES, frames=3, max_rows=2, like=torch.empty(0))


@pytest.mark.parametrize("make", [tiny, full])
@torch.inference_mode()
def test_streams_alone_and_together_are_what_the_decoder_makes(make: type[StreamingDecoder]) -> None:
    torch.set_num_threads(1)
    plain = make()
    both = plain, captured(plain)
    a, b, c = (noise(1, 16, 9, 4, 2, seed=seed) for seed in range(3))
    found = []
    for decoder in both:
        first, second, third = (decoder.open_decoder() for _ in range(3))
        made = [decoder.decode(torch.cat((a, b))[:, :, :3], [first, second]).clone()]
        made.append(decoder.decode(c[:, :, :3], [third]).clone())
        made.append(decoder.decode(torch.cat((c, a))[:, :, 3:6], [third, first]).clone())
        made.append(decoder.decode(b[:, :, 3:6], [second]).clone())
        made.append(decoder.decode(torch.cat((b, c))[:, :, 6:], [second, third]).clone())
        found.append(made)
        assert [state.units for state in (first, second, third)] == [6, 9, 9]
    for expected, made in zip(*found, strict=True):
        assert torch.allclose(made, expected, atol=1e-5)


@torch.inference_mode()
def test_a_snapshot_of_a_stream_stays_as_it_was() -> None:
    decoder = captured(tiny())
    latents = noise(1, 16, 9, 2, 4)
    state = decoder.open_decoder()
    decoder.decode(latents[:, :, :3], [state])
    before = state.copy()
    decoder.decode(noise(1, 16, 3, 2, 4, seed=9), [state])
    again = decoder.decode(latents[:, :, 3:6], [before]).clone()
    other = decoder.open_decoder()
    decoder.decode(latents[:, :, :3], [other])
    assert torch.equal(again, decoder.decode(latents[:, :, 3:6], [other]))


@torch.inference_mode()
def test_what_was_not_captured_goes_to_the_decoder_which_refuses_what_cannot_go_together() -> None:
    decoder = captured(full())
    assert decoder.captures == 2 * 2 * 2
    state = decoder.open_decoder()
    assert decoder.decode(noise(1, 16, 2, 4, 2), [state]).shape[2] == 5
    assert decoder.decode(noise(1, 16, 3, 4, 2), [state]).shape[2] == 12
    with pytest.raises(StreamSynthError, match="in the same phase"):
        decoder.decode(noise(2, 16, 3, 4, 2), [state, decoder.open_decoder()])
    with pytest.raises(StreamSynthError, match="size"):
        decoder.decode(noise(1, 16, 3, 2, 4), [state])
