"""Whole clips and images as a program asks for them: the same over a server and over workers of its own."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np
import pytest

from streamsynth import ErrorCode, StreamSynth, StreamSynthError
from streamsynth.testing.paint import read_picture
from streamsynth.testing.paint_pipeline import FIRST_CHUNK_FRAMES
from streamsynth.testing.server_process import ServerProcess

SMALL = {"size": "128x128", "seed": 7}


@pytest.fixture(scope="module")
def server(shared_serve_process: Callable[..., ServerProcess]) -> ServerProcess:
    return shared_serve_process("--model", "paint")


@asynccontextmanager
async def opened(door: str, server: ServerProcess) -> AsyncIterator[StreamSynth]:
    async with StreamSynth("paint") if door == "local" else StreamSynth.connect(server.url) as synth:
        yield synth


both = pytest.mark.parametrize("door", ["local", "remote"])


def decoded(data: bytes) -> list[np.ndarray]:
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@both
async def test_a_clip_is_in_a_file_or_in_memory(door: str, server: ServerProcess, tmp_path: Path) -> None:
    heard: list[float] = []
    async with opened(door, server) as synth:
        path = tmp_path / "clip.mp4"
        made = await synth.generate_video("a red field", seconds=2, output=path, on_progress=heard.append, **SMALL)
        held = await synth.generate_video("a red field", num_frames=32, **SMALL)
    data = path.read_bytes()
    assert (made.path, made.data, made.model, made.seed, made.fps) == (path, None, "paint", 7, 16)
    assert (made.num_frames, made.seconds, made.width, made.height) == (32, 2.0, 128, 128)
    assert [read_picture(each).frame for each in decoded(data)] == list(range(32))
    assert held.path is None and held.data == data, "the same seed and prompt make the same file"
    assert heard == sorted(heard) and heard[-1] == 1.0
    assert names(tmp_path) == ["clip.mp4"]


@both
@pytest.mark.parametrize(("name", "format"), [("a.png", "png"), ("a.jpg", "jpeg"), (None, "jpeg")])
async def test_an_image_is_a_files_bytes(
    door: str,
    server: ServerProcess,
    tmp_path: Path,
    name: str | None,
    format: str,  # noqa: A002
) -> None:
    output = tmp_path / name if name else None
    async with opened(door, server) as synth:
        made = await synth.generate_image("blue", output=output, format=None if name else format, **SMALL)
    assert (made.format, made.width, made.height, made.seed, made.path) == (format, 128, 128, 7, output)
    (picture,) = decoded(made.data)
    assert read_picture(picture).frame == FIRST_CHUNK_FRAMES - 1
    assert names(tmp_path) == ([name] if name else [])
    assert output is None or output.read_bytes() == made.data


@both
async def test_what_is_refused_is_the_same_error_and_leaves_no_file(
    door: str, server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    asked: list[tuple[dict[str, Any], ErrorCode, str | None]] = [
        ({"size": "1x1"}, ErrorCode.INVALID_VALUE, "size"),
        ({"seconds": 0}, ErrorCode.INVALID_VALUE, "seconds"),
        ({"steps": 5}, ErrorCode.UNSUPPORTED_FIELD, "num_inference_steps"),
        ({"seconds": float("nan")}, ErrorCode.INVALID_VALUE, "seconds"),
        ({"prompt": "\ud800"}, ErrorCode.INVALID_VALUE, "prompt"),
        ({"picture": b""}, ErrorCode.UNSUPPORTED_REFERENCE, "input_reference"),
        ({"picture": b"GIF"}, ErrorCode.UNSUPPORTED_FIELD, "input_reference"),
        ({"model": "nothing"}, ErrorCode.MODEL_NOT_FOUND, "model"),
        ({"output": tmp_path / "clip.avi"}, ErrorCode.INVALID_VALUE, "output"),
        ({"prompt": "{fail 2}"}, ErrorCode.ENGINE_FAILED, None),
        ({"prompt": "{refuse 0}"}, ErrorCode.INVALID_VALUE, "prompt"),
    ]
    async with opened(door, server) as synth:
        for fields, code, param in asked:
            with pytest.raises(StreamSynthError) as refused:
                await synth.generate_video(**{"prompt": "red", "output": path, **SMALL, **fields})
            assert (refused.value.code, refused.value.param) == (code, param)
        with pytest.raises(StreamSynthError) as unknown:
            await synth.generate_image("red", output=tmp_path / "a.gif")
        assert unknown.value.param == "output"
        with pytest.raises(StreamSynthError, match=r"format is 'jpeg'; it must be png, .*/a\.png' ends") as other:
            await synth.generate_image("red", format="jpeg", output=tmp_path / "a.png")
        assert other.value.param == "format"
    assert names(tmp_path) == []


@both
async def test_a_place_where_no_file_can_be_is_refused_before_the_work(
    door: str, server: ServerProcess, tmp_path: Path
) -> None:
    heard: list[float] = []
    async with opened(door, server) as synth:
        for output, error in ((tmp_path, IsADirectoryError), (tmp_path / "no" / "a.mp4", FileNotFoundError)):
            with pytest.raises(error):
                await synth.generate_video("red", output=output, on_progress=heard.append, **SMALL)
    assert heard == [] and names(tmp_path) == []


@both
async def test_two_that_are_made_into_one_place_leave_a_whole_one(
    door: str, server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    async with opened(door, server) as synth:
        await asyncio.gather(*(synth.generate_video(word, output=path, seconds=2, **SMALL) for word in ("red", "blue")))
    assert [read_picture(each).frame for each in decoded(path.read_bytes())] == list(range(32))
    assert names(tmp_path) == ["clip.mp4"]


@both
async def test_cancelling_it_ends_the_work(door: str, server: ServerProcess, tmp_path: Path) -> None:
    begun = asyncio.Event()

    def heard(progress: float) -> None:
        if progress > 0:
            begun.set()

    async with opened(door, server) as synth:
        path = tmp_path / "clip.mp4"
        asked = {"num_frames": 1_000_000, "output": path, "on_progress": heard, "size": "832x480"}
        making = asyncio.create_task(synth.generate_video("red", **asked))
        if door == "local":
            await begun.wait()
        else:
            await jobs_begun(server)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
    assert names(tmp_path) == []
    if door == "remote":
        async with aiohttp.ClientSession(server.url) as http, http.get("/metrics") as answer:
            text = await answer.text()
        assert "streamsynth_video_jobs_in_progress 0.0" in text


async def jobs_begun(server: ServerProcess) -> None:
    async with asyncio.timeout(10), aiohttp.ClientSession(server.url) as http:
        while True:
            async with http.get("/metrics") as answer:
                if "streamsynth_video_jobs_in_progress 1.0" in await answer.text():
                    return
            await asyncio.sleep(0.01)


@both
async def test_leaving_ends_what_is_being_made_for_others(door: str, server: ServerProcess) -> None:
    async with opened(door, server) as synth:
        making = asyncio.create_task(synth.generate_video("red", num_frames=1_000_000, size="128x128"))
        await asyncio.sleep(0)
    with pytest.raises(StreamSynthError) as ended:
        await making
    assert ended.value.code is ErrorCode.CANCELLED


async def test_a_server_that_is_not_there_says_so(tmp_path: Path) -> None:
    async with StreamSynth.connect("http://127.0.0.1:1") as synth:
        with pytest.raises(StreamSynthError) as failed:
            await synth.generate_video("red", output=tmp_path / "clip.mp4")
    assert failed.value.code is ErrorCode.CONNECTION_FAILED
