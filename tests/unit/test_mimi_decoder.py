"""Mimi decoding: transformers' own is the oracle, and streaming equals offline."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mimi_models import SMALL, config_of, pieces, random_codes, random_reference, settings_of_models
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MimiModel

from streamsynth.errors import StreamSynthError
from streamsynth.models.mimi.decoder import MimiDecoder, MimiDecoderState

FULL_SCALE_ERROR = 1e-5
REFERENCE_ERROR = 1e-4
BFLOAT16_ERROR = 0.03
CHUNKS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.


@pytest.fixture(scope="module")
def reference() -> MimiModel:
    return random_reference(SMALL)


@pytest.fixture(scope="module")
def decoder(reference: MimiModel) -> MimiDecoder:
    return MimiDecoder(config_of(reference), reference.state_dict())


def distance(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


def decoded_by(reference: MimiModel, codes: Tensor) -> Tensor:
    with torch.inference_mode():
        audio: Tensor = reference.decode(codes).audio_values[:, 0]
    return audio


def streamed(decoder: MimiDecoder, codes: Tensor, lengths: list[int]) -> Tensor:
    state = decoder.open_state(len(codes), max_frames=max(lengths))
    return torch.cat([decoder(piece, state) for piece in pieces(codes, lengths)], 1)


@settings(max_examples=40, deadline=None)
@given(settings_of_models(), st.integers(1, 3), st.integers(1, 12), CHUNKS, st.integers(0, 9))
def test_it_decodes_as_transformers_does_in_chunks_of_any_length(
    options: dict[str, Any], rows: int, frames: int, lengths: list[int], seed: int
) -> None:
    reference = random_reference(options, seed)
    decoder = MimiDecoder(config_of(reference), reference.state_dict())
    codes = random_codes(reference, rows=rows, frames=frames, seed=seed)
    expected = decoded_by(reference, codes)
    offline = decoder.decode(codes)
    scale = max(1.0, float(expected.abs().max()))
    assert offline.shape[1] == frames * decoder.config.frame_samples
    assert distance(offline, expected) <= REFERENCE_ERROR * scale
    assert distance(streamed(decoder, codes, lengths), offline) <= FULL_SCALE_ERROR * scale


@pytest.mark.parametrize("lengths", [[1], [2], [5], [1, 2, 5, 3]])
def test_long_streams_run_past_the_window_and_past_every_position_the_configuration_names(
    reference: MimiModel, decoder: MimiDecoder, lengths: list[int]
) -> None:
    """120 frames: 240 positions in a window of 10, where `max_position_embeddings` is 16."""
    codes = random_codes(reference, rows=2, frames=120)
    offline = decoder.decode(codes)
    assert distance(offline, decoded_by(reference, codes)) <= REFERENCE_ERROR
    assert distance(streamed(decoder, codes, lengths), offline) <= FULL_SCALE_ERROR


def test_a_stream_sounds_the_same_after_a_year(decoder: MimiDecoder, reference: MimiModel) -> None:
    """Positions near 10^9, where float32 angles would be off by whole turns."""
    codes = random_codes(reference, rows=1, frames=80)
    young, old = decoder.open_state(1, max_frames=1), decoder.open_state(1, max_frames=1)
    # A whole number of rings, so that the places stay the same; what was rotated before is forgotten in 40 frames.
    old.positions += old._ring.places * 60_000_000
    sounds = [[decoder(piece, state) for piece in pieces(codes, [1])] for state in (young, old)]
    tails = [torch.cat(sound[40:], 1) for sound in sounds]
    assert distance(*tails) <= FULL_SCALE_ERROR


class Streams:
    """Plays the scheduler: streams come and go on slots, and each step takes some of them in any order."""

    def __init__(self, decoder: MimiDecoder, codes: Tensor, slots: int) -> None:
        self.decoder = decoder
        self.codes = codes
        self.state = decoder.open_state(slots, max_frames=5)
        self.playing: dict[int, int] = {}
        self.waiting = list(range(len(codes)))
        self.done = [0] * len(codes)
        self.audio: list[list[Tensor]] = [[] for _ in codes]

    def admit(self, slot: int) -> None:
        if slot not in self.playing and self.waiting:
            self.state.reset(slot)
            self.playing[slot] = self.waiting.pop(0)

    def step(self, slots: list[int], frames: int, idle: set[int]) -> None:
        rows = [slot for slot in slots if self.left(slot) >= frames]
        if not rows:
            return
        codes = torch.stack([self._next(slot, frames) for slot in rows])
        active = torch.tensor([slot not in idle for slot in rows])
        audio = self.decoder(codes, self.state, rows=torch.tensor(rows), active=active)
        for slot, sound in zip(rows, audio, strict=True):
            if slot not in idle:
                stream = self.playing[slot]
                self.audio[stream].append(sound)
                self.done[stream] += frames
                if not self.left(slot):
                    del self.playing[slot]

    def left(self, slot: int) -> int:
        return self.codes.shape[2] - self.done[self.playing[slot]] if slot in self.playing else 0

    def _next(self, slot: int, frames: int) -> Tensor:
        stream = self.playing[slot]
        return self.codes[stream, :, self.done[stream] : self.done[stream] + frames]


STEPS = st.tuples(st.permutations(range(4)), st.integers(1, 4), st.integers(1, 5), st.sets(st.integers(0, 3)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 3), STEPS), min_size=20, max_size=60))
def test_streams_that_come_and_go_beside_each_other_sound_as_if_alone(
    decoder: MimiDecoder, reference: MimiModel, events: list[Any]
) -> None:
    """Rows are reset one by one, are at different positions, stand in any order, and idle now and then."""
    codes = random_codes(reference, rows=8, frames=12)
    alone = decoder.decode(codes)
    streams = Streams(decoder, codes, slots=4)
    for event in events:
        if isinstance(event, int):
            streams.admit(event)
        else:
            order, count, frames, idle = event
            streams.step(list(order[:count]), frames, idle)
    for stream, parts in enumerate(streams.audio):
        if parts:
            sound = torch.cat(parts)
            assert distance(sound, alone[stream, : len(sound)]) <= FULL_SCALE_ERROR


def test_an_idle_row_of_a_full_batch_stands_still(decoder: MimiDecoder, reference: MimiModel) -> None:
    codes = random_codes(reference, rows=2, frames=30)
    alone = decoder.decode(codes)
    state = decoder.open_state(2)
    done, sounds = [0, 0], [[], []]
    for turn in range(60):
        active = torch.tensor([done[0] < 30 and turn % 3 != 0, done[1] < 30 and turn % 2 == 0])
        now = torch.stack([codes[row, :, min(done[row], 29)] for row in (0, 1)])[:, :, None]
        audio = decoder(now, state, active=active)
        for row in (0, 1):
            if active[row]:
                sounds[row].append(audio[row])
                done[row] += 1
    for row in (0, 1):
        assert done[row] == 30
        assert distance(torch.cat(sounds[row]), alone[row]) <= FULL_SCALE_ERROR


def test_rows_that_pad_a_batch_may_share_an_idle_slot(decoder: MimiDecoder, reference: MimiModel) -> None:
    """A captured step has a fixed number of rows; those without a stream all point at a slot that no stream has."""
    codes = random_codes(reference, rows=1, frames=20)
    state = decoder.open_state(4, max_frames=1)
    rows, active = torch.tensor([1, 3, 3, 3]), torch.tensor([True, False, False, False])
    sound = [decoder(piece.expand(4, -1, -1), state, rows=rows, active=active)[:1] for piece in pieces(codes, [1])]
    assert distance(torch.cat(sound, 1), decoder.decode(codes)) <= FULL_SCALE_ERROR
    assert state.positions.tolist() == [0, 40, 0, 0]


def test_a_reset_slot_forgets_even_what_is_not_a_number(decoder: MimiDecoder, reference: MimiModel) -> None:
    codes = random_codes(reference, rows=2, frames=20)
    state = decoder.open_state(2)
    for name in ("kv", "flat"):
        buffer = state._ring.kv if name == "kv" else state._contexts.flat
        buffer.fill_(float("nan"))
    for slot in (0, 1):
        state.reset(slot)
    sound = torch.cat([decoder(piece, state) for piece in pieces(codes, [4])], 1)
    assert distance(sound, decoder.decode(codes)) <= FULL_SCALE_ERROR


def test_fewer_codebooks_decode_as_in_transformers(decoder: MimiDecoder, reference: MimiModel) -> None:
    codes = random_codes(reference, rows=2, frames=7)
    for books in (1, 2, 3):
        few = codes[:, :books]
        assert distance(decoder.decode(few), decoded_by(reference, few)) <= REFERENCE_ERROR


def test_bfloat16_stays_near_float32_and_near_itself(decoder: MimiDecoder, reference: MimiModel) -> None:
    """Of full scale: rounding to 8 bits in every layer of a random network, much more than in a trained one."""
    half = MimiDecoder(decoder.config, reference.state_dict(), dtype=torch.bfloat16)
    codes = random_codes(reference, rows=2, frames=60)
    offline = half.decode(codes)
    assert offline.dtype == torch.float32
    assert distance(offline, decoder.decode(codes)) <= BFLOAT16_ERROR
    for lengths in ([1], [5], [1, 2, 5]):
        assert distance(streamed(half, codes, lengths), offline) <= BFLOAT16_ERROR


class NoReads(TorchDispatchMode):
    """Fails where a value would be waited for on the host, or a shape would depend on one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("masked", [False, True])
def test_a_step_reads_no_value_on_the_host(decoder: MimiDecoder, reference: MimiModel, masked: bool) -> None:
    """So that it can be captured."""
    state = decoder.open_state(3)
    codes = random_codes(reference, rows=3, frames=2)
    where = {"rows": torch.tensor([2, 0, 1]), "active": torch.tensor([True, False, True])} if masked else {}
    with NoReads():
        decoder(codes, state, **where)
        with pytest.raises(AssertionError, match="item"):
            state.positions.max().item()


def test_steps_of_one_size_reuse_their_memory(decoder: MimiDecoder, reference: MimiModel) -> None:
    """What a captured step reads and writes stays where it is, whatever other steps run in between."""
    codes = random_codes(reference, rows=3, frames=1)
    state = decoder.open_state(3, max_frames=4)

    def places() -> list[int]:
        decoder(codes, state)
        views = state._buffers.views(3, 1)
        kept = [state.positions, state._ring.kv, state._contexts.flat, *(view.inputs for view in views)]
        return [tensor.data_ptr() for tensor in kept]

    before = places()
    decoder(random_codes(reference, rows=3, frames=4), state)
    assert places() == before


def test_nothing_to_decode_is_no_sound(decoder: MimiDecoder) -> None:
    assert decoder.decode(torch.zeros(2, 4, 0, dtype=torch.int64)).shape == (2, 0)


@pytest.mark.parametrize(
    ("codes", "param"),
    [
        (torch.full((1, 4, 2), 16), "codes"),
        (torch.full((1, 4, 2), -1), "codes"),
        (torch.zeros(1, 5, 2, dtype=torch.int64), "codebooks"),
        (torch.zeros(1, 0, 2, dtype=torch.int64), "codebooks"),
    ],
)
def test_codes_that_are_none_are_refused(decoder: MimiDecoder, codes: Tensor, param: str) -> None:
    with pytest.raises(StreamSynthError) as refused:
        decoder.decode(codes)
    assert refused.value.param == param


def test_what_does_not_fit_the_state_is_refused(decoder: MimiDecoder) -> None:
    state = decoder.open_state(2, max_frames=3)
    codes = torch.zeros(2, 4, 4, dtype=torch.int64)
    for call, param in (
        (lambda: decoder(codes, state), "frames"),
        (lambda: decoder(codes[:, :, :1], state, rows=torch.tensor([0, 1, 0])), "rows"),
        (lambda: decoder(codes[:1, :, :1], state), "rows"),
        (lambda: state.reset(2), "slot"),
        (lambda: state.reset(-1), "slot"),
        (lambda: decoder.open_state(0), "slots"),
        (lambda: decoder.open_state(1, max_frames=0), "max_frames"),
    ):
        with pytest.raises(StreamSynthError) as refused:
            call()
        assert refused.value.param == param


def test_what_a_stream_keeps_does_not_grow(decoder: MimiDecoder, reference: MimiModel) -> None:
    state: MimiDecoderState = decoder.open_state(4)
    before = state.bytes_per_slot
    decoder(random_codes(reference, rows=4, frames=8), state)
    assert state.bytes_per_slot == before
