"""Mimi encoding: transformers' own is the oracle, and streaming equals offline.

A code is the nearest of a codebook's entries. Where the two nearest are equally near, rounding decides; so equality is
claimed where the gap between them, in float64, is over a hundred times the error of a float32 vector.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mimi_models import SMALL, config_of, pieces, random_codes, random_reference, settings_of_models
from torch import Tensor
from transformers import MimiModel

from streamsynth.errors import StreamSynthError
from streamsynth.models.mimi.encoder import MimiEncoder

VECTOR_ERROR = 2e-6
CHUNKS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.


@pytest.fixture(scope="module")
def reference() -> MimiModel:
    return random_reference(SMALL)


@pytest.fixture(scope="module")
def encoder(reference: MimiModel) -> MimiEncoder:
    return MimiEncoder(config_of(reference), reference.state_dict())


def noise(rows: int, samples: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, samples, generator=torch.Generator().manual_seed(seed))


def encoded_by(reference: MimiModel, audio: Tensor) -> Tensor:
    with torch.inference_mode():
        codes: Tensor = reference.encode(audio[:, None]).audio_codes
    return codes


def nearest(reference: MimiModel, audio: Tensor) -> tuple[Tensor, float]:
    """Codes in float64, and the least gap between two nearest entries, relative to the vectors' size."""
    codes, gaps = [], []
    with torch.inference_mode():
        exact = reference.double()
        hidden = exact.encoder_transformer(exact.encoder(audio.double()[:, None]).transpose(1, 2))[0]
        vectors = exact.downsample(hidden.transpose(1, 2)).transpose(1, 2)
        quantizer = exact.quantizer
        for part in (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer):
            rest = vectors if part.input_proj is None else vectors @ part.input_proj.weight[:, :, 0].T
            size = float(rest.abs().max())
            for layer in part.layers:
                book = layer.codebook.embed_sum / layer.codebook.cluster_usage[:, None]
                far = (rest[:, :, None] - book).norm(dim=-1)
                near = far.topk(2, largest=False)
                gaps.append(float((near.values[..., 1] - near.values[..., 0]).min()) / max(1.0, size))
                codes.append(near.indices[..., 0])
                rest = rest - book[codes[-1]]
        reference.float()
    return torch.stack(codes, 1), min(gaps)


def streamed(encoder: MimiEncoder, audio: Tensor, lengths: list[int]) -> Tensor:
    state = encoder.open_state(len(audio), max_frames=max(lengths))
    cuts = pieces(audio, [length * encoder.config.frame_samples for length in lengths])
    return torch.cat([encoder(piece, state) for piece in cuts], 2)


@settings(max_examples=40, deadline=None)
@given(settings_of_models(), st.integers(1, 2), st.integers(1, 10), CHUNKS, st.integers(0, 9), st.floats(0.01, 1))
def test_it_encodes_as_transformers_does_in_chunks_of_any_length(
    options: dict[str, Any], rows: int, frames: int, lengths: list[int], seed: int, part: float
) -> None:
    """Also audio that ends inside a frame, when it is encoded as a whole."""
    reference = random_reference(options, seed)
    encoder = MimiEncoder(config_of(reference), reference.state_dict())
    size = encoder.config.frame_samples
    audio = noise(rows, frames * size, seed)
    expected, gap = nearest(reference, audio)
    assume(gap > 100 * VECTOR_ERROR)
    assert torch.equal(encoded_by(reference, audio), expected)
    assert torch.equal(encoder.encode(audio), expected)
    assert torch.equal(streamed(encoder, audio, lengths), expected)

    short = audio[:, : (frames - 1) * size + max(1, int(part * size))]
    expected, gap = nearest(reference, short)
    assume(gap > 100 * VECTOR_ERROR)
    assert torch.equal(encoded_by(reference, short), expected)
    assert torch.equal(encoder.encode(short), expected)


@pytest.mark.parametrize("lengths", [[1], [2], [5], [1, 2, 5, 3]])
def test_long_streams_run_past_the_window(reference: MimiModel, encoder: MimiEncoder, lengths: list[int]) -> None:
    audio = noise(1, 60 * encoder.config.frame_samples, seed=3)
    expected, gap = nearest(reference, audio)
    assert gap > 100 * VECTOR_ERROR
    assert torch.equal(encoded_by(reference, audio), expected)
    assert torch.equal(encoder.encode(audio), expected)
    assert torch.equal(streamed(encoder, audio, lengths), expected)


def test_vectors_are_as_near_as_the_gap_assumes(reference: MimiModel, encoder: MimiEncoder) -> None:
    audio = noise(2, 30 * encoder.config.frame_samples)
    with torch.inference_mode():
        exact = reference.double()
        hidden = exact.encoder_transformer(exact.encoder(audio.double()[:, None]).transpose(1, 2))[0]
        expected = exact.downsample(hidden.transpose(1, 2)).transpose(1, 2)
        reference.float()
        found = encoder._vectors(audio, encoder.open_state(2, max_frames=30), None, None)
    assert float((found - expected).abs().max()) <= VECTOR_ERROR * max(1.0, float(expected.abs().max()))


def test_streams_beside_each_other_encode_as_if_alone(reference: MimiModel, encoder: MimiEncoder) -> None:
    """At different positions, in changing order, idle now and then, one reset while the others run."""
    size, slots = encoder.config.frame_samples, 3
    audio = noise(6, 8 * size, seed=19)
    alone, gap = nearest(reference, audio)
    assert gap > 100 * VECTOR_ERROR
    state = encoder.open_state(slots, max_frames=2)
    waiting = list(range(6))
    playing: dict[int, int] = {}
    done = [0] * 6
    found: list[list[Tensor]] = [[] for _ in range(6)]
    turn = 0
    while waiting or playing:
        turn += 1
        for slot in range(slots):
            if slot not in playing and waiting and turn % (slot + 1) == 0:
                state.reset(slot)
                playing[slot] = waiting.pop(0)
        order = [slot for slot in ((0, 1, 2), (2, 0, 1), (1, 2, 0))[turn % 3] if slot in playing]
        if not order:
            continue
        active = torch.tensor([(turn + slot) % 4 != 0 for slot in order])
        now = torch.stack([audio[playing[slot], done[playing[slot]] * size :][:size] for slot in order])
        codes = encoder(now, state, rows=torch.tensor(order), active=active)
        for slot, row, moved in zip(order, codes, active.tolist(), strict=True):
            if moved:
                stream = playing[slot]
                found[stream].append(row)
                done[stream] += 1
                if done[stream] == 8:
                    del playing[slot]
    assert torch.equal(torch.stack([torch.cat(parts, 1) for parts in found]), alone)


def test_codes_of_a_sound_that_was_decoded_give_it_again(reference: MimiModel) -> None:
    """Shapes fit: what the decoder takes is what the encoder gives."""
    encoder = MimiEncoder(config_of(reference), reference.state_dict())
    with torch.inference_mode():
        audio = reference.decode(random_codes(reference, rows=2, frames=5)).audio_values[:, 0]
        again = reference.decode(encoder.encode(audio)).audio_values[:, 0]
    assert again.shape == audio.shape


def test_bfloat16_codes_agree_where_the_gap_is_wide(reference: MimiModel, encoder: MimiEncoder) -> None:
    """First codes, in a random network: the later ones search what the first left over, and follow its changes."""
    half = MimiEncoder(encoder.config, reference.state_dict(), dtype=torch.bfloat16)
    audio = noise(2, 60 * encoder.config.frame_samples)
    same = half.encode(audio)[:, 0] == encoder.encode(audio)[:, 0]
    assert float(same.float().mean()) > 0.9


@pytest.mark.parametrize(("samples", "param"), [(7, "audio"), (13, "audio"), (0, "frames"), (9 * 12, "frames")])
def test_a_step_takes_whole_frames_that_fit(encoder: MimiEncoder, samples: int, param: str) -> None:
    with pytest.raises(StreamSynthError) as refused:
        encoder(torch.zeros(1, samples), encoder.open_state(1))
    assert refused.value.param == param


def test_no_audio_is_refused(encoder: MimiEncoder) -> None:
    with pytest.raises(StreamSynthError) as refused:
        encoder.encode(torch.zeros(1, 0))
    assert refused.value.param == "audio"
