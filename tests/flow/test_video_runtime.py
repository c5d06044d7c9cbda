"""Videos through the graph and a real worker, below any door: credit, cancels at any moment, bad engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from over_socket import until

from streamsynth.config.plan import plan
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.edge import EndOfEdge
from streamsynth.graph.flow import Status
from streamsynth.interactions.messages import Applied, Interaction, Notice
from streamsynth.observe.metrics import Metrics
from streamsynth.realtime import job_maker
from streamsynth.realtime.admission import Admission
from streamsynth.realtime.clip_fields import ClipSettings
from streamsynth.realtime.job_maker import JobMaker
from streamsynth.realtime.limits import Limits
from streamsynth.runtime import Runtime
from streamsynth.speech import SpeechRequest
from streamsynth.testing.faults import fault_at, kill_worker
from streamsynth.testing.paint import read_picture
from streamsynth.testing.paint_pipeline import CHUNK_FRAMES, FIRST_CHUNK_FRAMES, FPS
from streamsynth.video import VideoChunk, VideoRequest

REQUEST = VideoRequest(prompt="red", width=128, height=128, seed=1)
REFUSED = VideoRequest(prompt="{refuse 0}", width=128, height=128, seed=1)


@pytest_asyncio.fixture
async def runtime() -> AsyncIterator[Runtime]:
    started = Runtime(plan(["paint"]))
    await started.start()
    yield started
    await started.stop()


async def made(runtime: Runtime) -> int:
    """How many chunks the worker has made, once it has made none for two heartbeats."""
    stage = runtime.statistics().stages["paint.brush"]
    chunks = -1
    while True:
        await until(lambda seen=stage.beat: runtime.statistics().stages["paint.brush"].beat is not seen)
        stage = runtime.statistics().stages["paint.brush"]
        assert stage.beat is not None
        if chunks == (chunks := stage.beat.counters["chunks"]):
            return chunks


async def test_a_worker_is_one_chunk_ahead_of_its_reader_and_no_more(runtime: Runtime) -> None:
    flow = runtime.open_video("paint", REQUEST, lambda _: None)
    assert await made(runtime) == 1
    await flow.receive()
    assert await made(runtime) == 2
    flow.cancel()


async def test_a_receive_that_is_cancelled_anywhere_has_lost_nothing(runtime: Runtime) -> None:
    """V21."""
    flow = runtime.open_video("paint", REQUEST, lambda _: None)
    chunks: list[VideoChunk] = []

    async def take() -> None:
        chunks.append(await flow.receive())

    for wait in range(4):
        while await fault_at(wait, take()):
            await asyncio.sleep(0)
            break
    while len(chunks) < 6:
        await take()
    assert [chunk.report.chunk for chunk in chunks] == list(range(len(chunks)))
    frames = [read_picture(picture).frame for chunk in chunks for picture in chunk.pictures]
    assert frames == list(range(FIRST_CHUNK_FRAMES + (len(chunks) - 1) * CHUNK_FRAMES))
    flow.cancel()


async def test_two_hundred_videos_cancelled_at_any_moment_leave_the_worker_empty(runtime: Runtime) -> None:
    chance = random.Random(3)
    notices: list[Notice] = []

    async def come_and_go() -> None:
        flow = runtime.open_video("paint", REQUEST, notices.append)
        for number in range(chance.randint(0, 3)):
            flow.interact(Interaction(f"e{number}", {"prompt": "blue"}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.uniform(0, 0.02)):
                    await flow.receive()
        flow.cancel()
        assert (await flow.outcome).status is Status.CANCELLED
        await flow.idle()

    for _ in range(20):
        await asyncio.gather(*(come_and_go() for _ in range(10)))
    await made(runtime)
    beat = runtime.statistics().stages["paint.brush"].beat
    assert beat is not None
    assert (beat.live, beat.counters["live"], beat.memory_in_use) == (0, 0, 0)
    assert runtime.statistics().live_flows == 0


async def test_an_interaction_before_a_receive_reaches_the_worker_before_its_credit(runtime: Runtime) -> None:
    """So that a program which steers between two chunks always steers the same one."""
    for _ in range(10):
        notices: list[Notice] = []
        flow = runtime.open_video("paint", REQUEST, notices.append)
        await flow.receive()
        await until(lambda flow=flow: flow.lead().queued_items == 1)
        flow.interact(Interaction("a", {"prompt": "blue"}, 0))
        for _ in range(2):
            chunk = await flow.receive()
        assert chunk.report.started == ("a",)
        assert notices == [Applied("a", 2, FIRST_CHUNK_FRAMES + CHUNK_FRAMES)]
        flow.cancel()


async def test_finishing_ends_the_video_behind_what_is_made(runtime: Runtime) -> None:
    flow = runtime.open_video("paint", REQUEST, lambda _: None)
    await flow.receive()
    flow.finish()
    with pytest.raises(EndOfEdge):
        while True:
            last = await flow.receive()
    assert last.final
    outcome = await flow.outcome
    assert (outcome.status, outcome.finish_reason) == (Status.COMPLETED, "stop")


async def test_a_video_model_does_not_speak(runtime: Runtime) -> None:
    with pytest.raises(StreamSynthError) as refused:
        runtime.open_speech("paint", SpeechRequest(voice="red"))
    assert refused.value.code is ErrorCode.MODEL_NOT_FOUND
    assert runtime.speech_models == {}


async def test_a_request_that_the_engine_refuses_fails_by_its_own_words(runtime: Runtime) -> None:
    flow = runtime.open_video("paint", VideoRequest(prompt="{refuse 0}", width=128, height=128), lambda _: None)
    with pytest.raises(StreamSynthError) as refused:
        await flow.receive()
    assert refused.value.param == "prompt"


async def test_a_request_can_be_asked_about_while_the_worker_makes_others_and_takes_no_place() -> None:
    runtime = Runtime(plan(["paint"], sets=["brush.max_num_seqs=1", "brush.max_queued=0"]))
    await runtime.start()
    try:
        flow = runtime.open_video("paint", REQUEST, lambda _: None)
        await flow.receive()
        await runtime.check_video("paint", REQUEST)
        with pytest.raises(StreamSynthError) as refused:
            await runtime.check_video("paint", REFUSED)
        assert (refused.value.code, refused.value.param) == (ErrorCode.INVALID_VALUE, "prompt")
        assert (await flow.receive()).first_frame == FIRST_CHUNK_FRAMES
    finally:
        await runtime.stop()


async def test_nobody_waits_for_the_answer_of_a_worker_that_died(runtime: Runtime) -> None:
    pid = runtime.statistics().stages["paint.brush"].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(runtime.check_video("paint", REFUSED))
    await asyncio.sleep(0)
    kill_worker(pid)
    with pytest.raises(StreamSynthError) as died:
        await asked
    assert died.value.code is ErrorCode.WORKER_DIED


async def test_a_job_is_taken_where_its_model_cannot_say_yet_whether_it_refuses_it(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ClipSettings(model="paint", request=REFUSED, fps=FPS)
    limits = Limits()

    def maker_of(runtime: Runtime) -> JobMaker:
        return JobMaker(runtime, Admission(limits), Metrics().jobs, limits, {"paint": 1})

    with pytest.raises(StreamSynthError):
        await maker_of(runtime).check(settings)
    await maker_of(Runtime(plan(["paint"]))).check(settings)  # No worker: it was not started.
    monkeypatch.setattr(job_maker, "_CHECK_S", 0.0)
    await maker_of(runtime).check(settings)
    await until(lambda: runtime.statistics().stages["paint.brush"].stale_replies == 1)
