"""Frames between the server and its workers, and the memory beside them."""

import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.interactions.messages import Applied, Interaction, Kv, Mode, Progress, Refused, Superseded
from streamsynth.workers import wire
from streamsynth.workers.shared import PAGE_BYTES, MemoryReader, MemoryWriter, SlotAllocator, create_memory

ADDRESS = wire.Address(7, 1, 9)
TO_WORKER: list[wire.ToWorker] = [
    wire.Start("hibari.voice", "a.b:C", {"x": 1, "y": None}, 1 << 20, 0.5, 15.0, 30.0),
    wire.Open(ADDRESS, {"voice": "heart"}, 240_000),
    wire.Check(ADDRESS, {"prompt": "snow"}),
    wire.Text(ADDRESS, "Zoë 🙂"),
    wire.Interact(ADDRESS, Interaction("e1", {"prompt": "snow"}, 0, Mode.APPEND, Kv.RESET)),
    wire.Finish(ADDRESS),
    wire.Grant(ADDRESS, 5),
    wire.Cancel(ADDRESS),
    wire.Release((0, 4096)),
    wire.Stop(),
]
TO_SERVER: list[wire.ToServer] = [
    wire.Ready(0.5),
    wire.Ready(0.5, {"fps": 16, "sizes": [{"width": 64, "height": 32}]}),
    wire.StartFailed({"code": "start_failed", "message": "no"}),
    wire.Output(ADDRESS, 0, 2, 24_000, wire.Array("<f4", (2,), inline=b"12345678", nbytes=8), {"segment": 0}, True),
    wire.Noticed(ADDRESS, (Applied("e1", 3, 33), Superseded("e2", None), Refused("e3", {"code": "x"}))),
    wire.Noticed(ADDRESS, (Progress(3, 20),)),
    wire.Ended(ADDRESS, "stop", None, 3),
    wire.Beat(
        steps=1,
        live=2,
        steps_after_cancel=0,
        demand=1,
        cost_each=0.01,
        cost_shared=0.2,
        behind_s=0.0,
        stuck_s=0.0,
        memory_in_use=0,
        counters={"live": 2},
    ),
]


def test_every_message_comes_back_as_it_was() -> None:
    for command in TO_WORKER:
        (body,) = wire.FrameSplitter().feed(wire.encode(command))
        assert wire.decode_to_worker(body) == command
    for reply in TO_SERVER:
        (body,) = wire.FrameSplitter().feed(wire.encode(reply))
        assert wire.decode_to_server(body) == reply


@given(st.lists(st.integers(0, 3000), max_size=8), st.data())
def test_frames_are_found_however_the_bytes_arrive(cuts: list[int], data: st.DataObject) -> None:
    stream = b"".join(wire.encode(message) for message in TO_WORKER)
    splitter = wire.FrameSplitter()
    bodies: list[bytes] = []
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    for start, end in pairwise(places):
        bodies += splitter.feed(stream[start:end])
    assert [wire.decode_to_worker(body) for body in bodies] == TO_WORKER


def test_a_frame_above_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="the limit is"):
        wire.encode(wire.Text(ADDRESS, "x" * (wire.MAX_FRAME_BYTES + 1)))
    with pytest.raises(ValueError, match="the limit is"):
        list(wire.FrameSplitter().feed((wire.MAX_FRAME_BYTES + 1).to_bytes(4, "little")))


@pytest.mark.parametrize("count", [0, 1, 8192, 8193, 500_000])
def test_an_array_arrives_whole_inline_or_in_shared_memory(count: int) -> None:
    memory = create_memory(4 << 20)
    writer, reader = MemoryWriter(memory, 4 << 20), MemoryReader(memory, 4 << 20)
    os.close(memory)
    array = np.random.default_rng(count).standard_normal(count, dtype=np.float32)
    sent = writer.store(array)
    assert (sent.offset is None) == (array.nbytes <= wire.INLINE_BYTES)
    np.testing.assert_array_equal(reader.view(sent), array)
    if sent.offset is not None:
        assert writer.in_use >= array.nbytes
        writer.release((sent.offset,))
    assert writer.in_use == 0


def test_an_array_larger_than_the_memory_is_an_error_and_takes_nothing() -> None:
    memory = create_memory(1 << 16)
    writer = MemoryWriter(memory, 1 << 16)
    os.close(memory)
    with pytest.raises(ValueError, match="does not fit"):
        writer.store(np.zeros(1 << 16, np.float32))
    assert writer.in_use == 0


def test_a_view_whose_shape_and_size_disagree_is_refused() -> None:
    memory = create_memory(PAGE_BYTES)
    reader = MemoryReader(memory, PAGE_BYTES)
    os.close(memory)
    with pytest.raises(ValueError, match="does not have"):
        reader.view(wire.Array("<f4", (3,), inline=b"1234", nbytes=4))


@given(st.lists(st.integers(-20, 40_000), max_size=80))
def test_slots_never_overlap_and_all_come_back(steps: list[int]) -> None:
    """A positive number allocates that many bytes, any other releases one of the slots in use."""
    slots = SlotAllocator(128 << 10)
    held: dict[int, int] = {}
    for step in steps:
        if step > 0:
            offset = slots.allocate(step)
            if offset is not None:
                assert all(offset + step <= other or other + size <= offset for other, size in held.items())
                held[offset] = step
        elif held:
            offset = sorted(held)[-step % len(held)]
            slots.release(offset)
            del held[offset]
    for offset in held:
        slots.release(offset)
    assert slots.in_use == 0
    assert slots.allocate(128 << 10) == 0


def test_releasing_a_slot_twice_is_an_error() -> None:
    slots = SlotAllocator(1 << 16)
    offset = slots.allocate(1)
    assert offset is not None
    slots.release(offset)
    with pytest.raises(KeyError):
        slots.release(offset)
