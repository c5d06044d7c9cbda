"""The rollout engine in a real worker, on a device that is behind the host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import late_device
import numpy as np
import pytest_asyncio
from rollout_driver import engine_of, nearly_equal, open_video, pictures_of
from rollout_models import SmallVideoModel

from streamsynth.config.resolve import resolve
from streamsynth.graph.edge import EndOfEdge
from streamsynth.graph.flow import Status
from streamsynth.interactions.messages import Applied, Interaction, Kv, Notice
from streamsynth.runtime import Runtime
from streamsynth.video import VideoChunk, VideoRequest
from streamsynth.workers.launchers import ThreadLauncher


@pytest_asyncio.fixture
async def runtime() -> AsyncIterator[Runtime]:
    started = Runtime([resolve(late_device.LATE)], launcher=ThreadLauncher())
    await started.start()
    yield started
    await started.stop()
    engine = late_device.ENGINES.pop()
    engine.close()
    counters = engine.counters()
    assert counters["live"] == 0 and counters["free_pages"] == counters["pages"]


def request(prompt: str = "a", *, num_frames: int | None = None) -> VideoRequest:
    return VideoRequest(prompt=prompt, width=32, height=32, seed=1, num_frames=num_frames)


async def test_a_video_and_its_steer_are_what_the_engine_makes_in_step(runtime: Runtime) -> None:
    steer = Interaction("e", {"prompt": "b"}, transition_chunks=0, kv=Kv.RECACHE)
    notices: list[Notice] = []
    flow = runtime.open_video("late", request(num_frames=19), notices.append)
    chunks: list[VideoChunk] = [await flow.receive()]
    flow.interact(steer)
    with contextlib.suppress(EndOfEdge):
        while True:
            chunks.append(await flow.receive())
    assert (await flow.outcome).status is Status.COMPLETED
    (applied,) = [notice for notice in notices if isinstance(notice, Applied)]

    engine = engine_of(SmallVideoModel())
    stream = open_video(engine, "a")
    expected = pictures_of(engine, stream, applied.chunk)
    stream.interact(steer)
    expected += pictures_of(engine, stream, 5 - applied.chunk)
    made = np.concatenate([chunk.pictures for chunk in chunks])
    assert nearly_equal(made, np.concatenate(expected)[:19])


async def test_videos_cancelled_at_any_moment_leave_the_worker_free(runtime: Runtime) -> None:
    for wait in range(12):
        first = runtime.open_video("late", request(), lambda _: None)
        second = runtime.open_video("late", request("b", num_frames=7), lambda _: None)
        for _ in range(wait % 4):
            await first.receive()
        for _ in range(wait):
            await asyncio.sleep(0)
        first.cancel()
        pictures = 0
        with contextlib.suppress(EndOfEdge):
            while True:
                pictures += len((await second.receive()).pictures)
        assert pictures == 7 and (await second.outcome).status is Status.COMPLETED
