"""What a program with workers of its own sees when one dies."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from streamsynth import ErrorCode, StreamSynth, StreamSynthError
from streamsynth.testing.faults import find_workers, kill_worker


@pytest.fixture
def new_workers() -> Callable[[], list[int]]:
    """The workers of this process that were not there before the test."""
    before = set(find_workers(os.getpid()))
    return lambda: [pid for pid in find_workers(os.getpid()) if pid not in before]


async def test_a_dead_worker_ends_its_speech_within_a_second_and_is_replaced(
    new_workers: Callable[[], list[int]],
) -> None:
    """T7.11."""
    async with StreamSynth("sine") as synth:
        speech = synth.speak("{delay 50}" + "x" * 1000)
        await anext(speech)
        (worker,) = new_workers()
        died = kill_worker(worker)
        with pytest.raises(StreamSynthError) as caught:
            async for _ in speech:
                pass
        assert caught.value.code is ErrorCode.WORKER_DIED
        assert time.monotonic() - died < 1
        assert await spoken_again(synth) == 3 * 1200
    assert new_workers() == []


async def spoken_again(synth: StreamSynth) -> int:
    """Ask until the new worker is there: no event of the API says so."""
    async with asyncio.timeout(20):
        while True:
            try:
                return sum([len(chunk.samples) async for chunk in synth.speak("abc")])
            except StreamSynthError as error:
                assert error.code is ErrorCode.WORKER_DIED
                await asyncio.sleep(0.05)


async def test_closing_cancels_what_is_being_read() -> None:
    synth = StreamSynth("sine")
    async with synth:
        speech = synth.speak("x" * 20_000)
        await anext(speech)
    with pytest.raises(StreamSynthError) as caught:
        async for _ in speech:
            pass
    assert caught.value.code is ErrorCode.CANCELLED
    await synth.close()


async def test_a_start_that_is_cancelled_leaves_no_worker(new_workers: Callable[[], list[int]]) -> None:
    synth = StreamSynth("sine")
    starting = asyncio.create_task(synth.start())
    async with asyncio.timeout(10):
        while not new_workers():
            await asyncio.sleep(0.005)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert new_workers() == []
