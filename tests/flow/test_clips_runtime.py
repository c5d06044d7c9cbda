"""Whole clips through the graph and a real worker, from a folder in diffusers' layout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from over_socket import until
from small_pipelines.clips import STEPS, called_directly, options, request, save

from streamsynth.config.plan import plan
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import VideoFlow
from streamsynth.graph.edge import EndOfEdge
from streamsynth.graph.flow import Status
from streamsynth.interactions.messages import Notice, Progress
from streamsynth.realtime.video_fields import parse_video_fields
from streamsynth.runtime import Runtime
from streamsynth.video import MAX_PICTURE_BYTES, Size, VideoChunk

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("wan", tmp_path_factory.mktemp("wan"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(folder: Path) -> AsyncIterator[Runtime]:
    values = options(folder, sizes=["512x512"], max_frames=9)
    sets = [f"denoiser.{name}={value}".replace("'", "") for name, value in values.items()]
    started = Runtime(plan(["diffusers"], (), sets))
    await started.start()
    yield started
    await started.stop()


async def received(flow: VideoFlow) -> list[VideoChunk]:
    chunks = []
    while True:
        try:
            chunks.append(await flow.receive())
        except EndOfEdge:
            return chunks


async def test_a_clip_comes_as_the_pipeline_makes_it_with_every_step_told(runtime: Runtime, folder: Path) -> None:
    """In pieces of bounded size, contiguous, the last one final."""
    notices: list[Notice] = []
    asked = request("wan", width=512, height=512, num_frames=9)
    flow = runtime.open_video("diffusers", asked, notices.append)
    chunks = await received(flow)
    assert (await flow.outcome).status is Status.COMPLETED
    assert notices == [Progress(step, STEPS) for step in range(1, STEPS + 1)]
    assert [chunk.first_frame for chunk in chunks] == [0, 5]
    assert [chunk.final for chunk in chunks] == [False, True]


async def test_what_the_folder_makes_is_known_once_its_worker_has_loaded_it(runtime: Runtime) -> None:
    traits = runtime.video_models["diffusers"].video
    assert (traits.sizes, traits.fps, traits.default_frames) == ((Size(width=512, height=512),), 16, 9)
    with pytest.raises(StreamSynthError, match="no model of this server makes video while it is watched"):
        parse_video_fields({"prompt": "a"}, runtime.video_models, payload_bytes=1 << 20, loopback=True)


async def test_a_clip_that_is_aborted_leaves_the_worker_to_the_next(runtime: Runtime) -> None:
    told = asyncio.Event()
    asked = request("wan", width=512, height=512, num_frames=5, steps=20)
    flow = runtime.open_video("diffusers", asked, lambda _: told.set())
    await told.wait()
    flow.cancel()
    assert (await flow.outcome).status is Status.CANCELLED
    await flow.idle()
    small = request("wan", width=256, height=256, num_frames=5)
    assert (await received(runtime.open_video("diffusers", small, lambda _: None)))[-1].final

    def empty() -> bool:
        beat = runtime.statistics().stages["diffusers.denoiser"].beat
        return beat is not None and (beat.live, beat.counters["live"], beat.memory_in_use) == (0, 0, 0)

    await until(empty)


async def test_what_never_fits_fails_by_its_own_words(runtime: Runtime) -> None:
    flow = runtime.open_video("diffusers", request("wan", width=1024, height=512, num_frames=5), lambda _: None)
    with pytest.raises(StreamSynthError, match="512x512; sides of 256 to 1024") as refused:
        await flow.receive()
    assert (refused.value.code, refused.value.param) == (ErrorCode.INVALID_VALUE, "width")


async def test_a_picture_that_no_message_could_carry_is_refused_before_it_is_sent(runtime: Runtime) -> None:
    asked = request("wan", picture=bytes(MAX_PICTURE_BYTES + 1))
    with pytest.raises(StreamSynthError) as refused:
        runtime.open_video("diffusers", asked, lambda _: None)
    assert (refused.value.code, refused.value.param) == (ErrorCode.MESSAGE_TOO_LARGE, "picture")
    largest = request("wan", width=512, height=512, picture=bytes(MAX_PICTURE_BYTES))
    flow = runtime.open_video("diffusers", largest, lambda _: None)
    with pytest.raises(StreamSynthError, match="does not use picture"):
        await flow.receive()


async def test_a_small_clip_is_byte_for_byte_the_pipeline_s_own(runtime: Runtime, folder: Path) -> None:
    asked = request("wan", width=256, height=256, num_frames=5)
    flow = runtime.open_video("diffusers", asked, lambda _: None)
    pictures = np.concatenate([chunk.pictures for chunk in await received(flow)])
    direct = await asyncio.to_thread(called_directly, "wan", folder, asked)
    np.testing.assert_array_equal(pictures, direct)
