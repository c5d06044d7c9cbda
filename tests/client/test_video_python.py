"""Videos as a program sees them: the same over a server and over workers of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from streamsynth import ErrorCode, StreamSynth, StreamSynthError, VideoChunk
from streamsynth.codecs import VideoFormat, open_video_encoder
from streamsynth.codecs.mp4_reader import FragmentDecoder, is_whole
from streamsynth.interactions.messages import Applied, Superseded
from streamsynth.testing.faults import kill_worker
from streamsynth.testing.paint import COLOURS, Painted, paint, read_picture
from streamsynth.testing.server_process import ServerProcess

SMALL = {"width": 128, "height": 128}


@pytest.fixture(scope="module")
def server(shared_serve_process: Callable[..., ServerProcess]) -> ServerProcess:
    return shared_serve_process("--model", "paint")


@asynccontextmanager
async def opened(door: str, server: ServerProcess) -> AsyncIterator[StreamSynth]:
    async with StreamSynth("paint") if door == "local" else StreamSynth.connect(server.url) as synth:
        yield synth


both = pytest.mark.parametrize("door", ["local", "remote"])


def frames(chunks: list[VideoChunk]) -> list[int]:
    return [read_picture(picture).frame for chunk in chunks for picture in chunk.pictures]


@both
async def test_a_video_is_read_to_its_end(door: str, server: ServerProcess) -> None:
    async with opened(door, server) as synth, synth.video_session("red", num_frames=30, seed=7, **SMALL) as video:
        assert (video.config.fps, video.config.seed, video.config.model) == (16, 7, "paint")
        chunks = [chunk async for chunk in video]
    assert frames(chunks) == list(range(30))
    assert [chunk.first_frame for chunk in chunks[:3]] == [0, 9, 21]
    assert [chunk.final for chunk in chunks].count(True) == 1 and chunks[-1].final


@both
@pytest.mark.parametrize(
    ("num_frames", "chunks"), [(20, [(0, 0, 9), (1, 9, 11)]), (33, [(0, 0, 9), (1, 9, 12), (2, 21, 12)])]
)
async def test_the_chunks_of_a_video_are_those_that_the_model_made(
    num_frames: int, chunks: list[tuple[int, int, int]], door: str, server: ServerProcess
) -> None:
    """The last one has pictures and is final, and no empty one follows it: one that ends early, and one that does
    not."""
    async with opened(door, server) as synth, synth.video_session("red", num_frames=num_frames, **SMALL) as video:
        read = [chunk async for chunk in video]
    assert [(each.report.chunk, each.first_frame, len(each.pictures)) for each in read] == chunks
    assert [each.final for each in read] == [False] * (len(chunks) - 1) + [True]


@both
async def test_a_video_that_was_stopped_ends_with_an_empty_chunk_that_counts_those_before_it(
    door: str, server: ServerProcess
) -> None:
    async with opened(door, server) as synth, synth.video_session("red", **SMALL) as video:
        read = []
        async for chunk in video:
            read.append(chunk)
            video.stop()
    *made, last = read
    assert [each.report.chunk for each in read] == list(range(len(read)))
    assert (len(last.pictures), last.final) == (0, True)
    assert last.first_frame == sum(len(each.pictures) for each in made)
    assert all(len(each.pictures) and not each.final for each in made)


@both
async def test_a_video_that_is_over_cannot_be_steered(door: str, server: ServerProcess) -> None:
    async with opened(door, server) as synth, synth.video_session("red", num_frames=12, **SMALL) as video:
        assert [chunk async for chunk in video][-1].final
        with pytest.raises(StreamSynthError) as refused:
            await video.interact("blue")
    assert refused.value.code is ErrorCode.INTERACTION_NOT_ACTIVE


@both
async def test_a_read_that_is_cancelled_loses_nothing(door: str, server: ServerProcess) -> None:
    chunks: list[VideoChunk] = []
    async with opened(door, server) as synth, synth.video_session("red", num_frames=57, **SMALL) as video:
        while not chunks or not chunks[-1].final:
            try:
                chunks.append(await asyncio.wait_for(anext(video), 0.0005))
            except TimeoutError:
                await asyncio.sleep(0.001)
    assert frames(chunks) == list(range(57))


@both
async def test_a_session_that_was_not_entered_says_so(door: str, server: ServerProcess) -> None:
    async with opened(door, server) as synth:
        video = synth.video_session("red", **SMALL)
        for use in (video.stop, lambda: video.interact("blue")):
            with pytest.raises(RuntimeError, match="enter the video session first"):
                use()
        with pytest.raises(RuntimeError, match="enter the video session first"):
            await anext(video)


@both
async def test_a_lone_surrogate_is_refused_by_name_and_the_video_goes_on(door: str, server: ServerProcess) -> None:
    async with opened(door, server) as synth:
        with pytest.raises(StreamSynthError, match="lone surrogates") as refused:
            async with synth.video_session("\ud800", **SMALL):
                pass
        assert (refused.value.code, refused.value.param) == (ErrorCode.INVALID_VALUE, "prompt")
        async with synth.video_session("red", num_frames=30, **SMALL) as video:
            with pytest.raises(StreamSynthError, match="lone surrogates"):
                video.interact("\ud800")
            assert frames([chunk async for chunk in video]) == list(range(30))


@both
async def test_steering_is_seen_where_its_receipt_says(door: str, server: ServerProcess) -> None:
    async with opened(door, server) as synth, synth.video_session("red", **SMALL) as video:
        seen: list[VideoChunk] = []
        receipt = None
        async for chunk in video:
            seen.append(chunk)
            if len(seen) == 2:
                receipt = video.interact("blue", transition_chunks=0)
            if chunk.report.completed:
                video.stop()
        assert receipt is not None
        applied = await receipt
    assert isinstance(applied, Applied)
    first = next(chunk for chunk in seen if applied.event_id in chunk.report.started)
    assert (first.report.chunk, first.first_frame) == (applied.chunk, applied.first_frame)
    assert read_picture(first.pictures[0]).prompt_version == 1
    assert np.allclose(read_picture(first.pictures[0]).colour, COLOURS["blue"], atol=6)


@both
async def test_an_id_used_again_is_a_retry_or_refused_and_what_it_stood_for_first_is_told(
    door: str, server: ServerProcess
) -> None:
    async with opened(door, server) as synth, synth.video_session("red", num_frames=90, **SMALL) as video:
        first = video.interact("blue", event_id="e", transition_chunks=0)
        with pytest.raises(StreamSynthError) as refused:
            video.interact("green", event_id="e")
        assert refused.value.code is ErrorCode.EVENT_ID_CONFLICT
        appended = [video.interact("{refuse 0}", event_id="r", mode="append") for _ in range(2)]
        async for chunk in video:
            if chunk.report.chunk == 5:
                again = video.interact("blue", event_id="e", transition_chunks=0)
                assert await again == await first
                appended.append(video.interact("{refuse 0}", event_id="r", mode="append"))
        assert isinstance(await first, Applied)
        for receipt in appended:
            with pytest.raises(StreamSynthError) as refused:
                await receipt
            assert refused.value.code is ErrorCode.INTERACTION_FAILED


@both
async def test_what_cannot_be_is_refused_alike(door: str, server: ServerProcess) -> None:
    async with opened(door, server) as synth:
        for fields, code in (({"width": 5}, ErrorCode.INVALID_VALUE), ({"model": "x"}, ErrorCode.MODEL_NOT_FOUND)):
            with pytest.raises(StreamSynthError) as refused:
                async with synth.video_session("red", **fields):  # type: ignore[arg-type]
                    pass
            assert refused.value.code is code
        async with synth.video_session("red", **SMALL) as video:
            with pytest.raises(StreamSynthError):
                video.interact("")
            with pytest.raises(StreamSynthError):
                video.interact("blue", mode="whenever")
            refusal, overtaken = video.interact("{refuse 0}", mode="append"), video.interact("green", mode="append")
            async for _ in video:
                if refusal.done() and overtaken.done():
                    break
            with pytest.raises(StreamSynthError) as failed:
                await refusal
            assert failed.value.code is ErrorCode.INTERACTION_FAILED
            assert isinstance(await overtaken, Applied)


@both
async def test_leaving_early_gives_the_worker_back_and_settles_what_was_asked(door: str, server: ServerProcess) -> None:
    async with opened(door, server) as synth:
        for _ in range(5):
            async with synth.video_session("red", **SMALL) as video:
                async for _chunk in video:
                    receipt = video.interact("blue", mode="append", transition_chunks=900)
                    late = video.interact("green", mode="append")
                    break
            assert isinstance(await late, Superseded)
            assert receipt.done()


async def test_a_server_that_loses_its_worker_raises_that(server: ServerProcess) -> None:
    async with StreamSynth.connect(server.url) as synth, synth.video_session("red", **SMALL) as video:
        with pytest.raises(StreamSynthError) as died:
            async for chunk in video:
                if chunk.report.chunk == 1:
                    (worker,) = server.worker_pids()
                    await asyncio.to_thread(kill_worker, worker)
        assert died.value.code is ErrorCode.WORKER_DIED


def test_fragments_are_decoded_whole_and_in_pieces() -> None:
    pictures = np.stack(
        [
            paint(128, 128, Painted(frame=k, prompt_version=0, chunk=0, epoch=0, colour=(9, 200, 90)), 1)
            for k in range(6)
        ]
    )
    encoder = open_video_encoder(VideoFormat.M4S, width=128, height=128, fps=16, payload_bytes=1 << 20)
    decoder = FragmentDecoder(encoder.header())
    for start in (0, 3):
        (payload,) = encoder.encode(pictures[start : start + 3], start, keyframe=start == 0)
        assert not is_whole(payload.data[:-1]) and is_whole(payload.data)
        assert [read_picture(each).frame for each in decoder.decode(payload.data)] == [start, start + 1, start + 2]
    with pytest.raises(ValueError, match="box"):
        decoder.decode(b"not a fragment at all")
