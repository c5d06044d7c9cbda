"""A clip on its way to a file: pictures come from a flow, are encoded in a thread, and the file appears when whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from streamsynth.codecs import ClipEncoder, EncodingLane, StillFormat, encode_still
from streamsynth.codecs.pictures import Pictures
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import VideoFlow


class ClipFile:
    """Writes to `unfinished`, which becomes `path` at the end. Its methods block.

    `thumbnail` is where the last of the first pictures goes, as JPEG: it goes on from those before it. `frames` and
    `nbytes` are what is written so far.
    """

    def __init__(
        self, path: Path, unfinished: Path, *, width: int, height: int, fps: int, thumbnail: Path | None = None
    ) -> None:
        self._path = path
        self._unfinished = unfinished
        self._thumbnail = thumbnail
        self._encoder = ClipEncoder(width=width, height=height, fps=fps)
        self._file: BinaryIO | None = None
        self._finished = False
        self.nbytes = 0

    @property
    def frames(self) -> int:
        return self._encoder.frames

    def put(self, pictures: Pictures) -> None:
        if self._file is None:
            self._file = self._unfinished.open("wb")
            if self._thumbnail is not None:
                self._thumbnail.write_bytes(encode_still(pictures[-1], StillFormat.JPEG))
        self._write(self._file, self._encoder.encode(pictures))

    def finish(self) -> None:
        """The file is there, and would survive the power going."""
        assert self._file is not None, "a clip has pictures"
        self._write(self._file, self._encoder.finish())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._unfinished.replace(self._path)
        self._finished = True

    def discard(self) -> None:
        """Leave nothing of an unfinished file; of a finished one, everything. Idempotent."""
        if self._file is not None and not self._finished:
            with suppress(OSError):  # on a full disk, what is still to be written
                self._file.close()
            self._unfinished.unlink(missing_ok=True)
            if self._thumbnail is not None:
                self._thumbnail.unlink(missing_ok=True)

    def _write(self, file: BinaryIO, data: bytes) -> None:
        file.write(data)
        self.nbytes += len(data)


async def last_picture(flow: VideoFlow) -> Pictures:
    """Of a clip, (height, width, 3). Raises what ended the flow, and ENGINE_FAILED where it had none."""
    picture: Pictures | None = None
    final = False
    while not final:
        chunk = await flow.receive()
        final = chunk.final
        if len(chunk.pictures):
            picture = chunk.pictures[-1]
    if picture is None:
        raise StreamSynthError(ErrorCode.ENGINE_FAILED, "the model made no picture")
    return picture


async def film(flow: VideoFlow, file: ClipFile, num_frames: int, on_chunk: Callable[[], None]) -> None:
    """Bring all pictures of `flow` to `file`; `on_chunk` hears of each chunk when it is written, and may raise.

    However it ends, nobody works on the file any more; what is unfinished is gone. Raises what ended the flow, what the
    disk says as OSError, and ENGINE_FAILED for a clip of another length than `num_frames`.
    """
    lane = EncodingLane()
    try:
        final = False
        while not final:
            chunk = await flow.receive()
            final = chunk.final
            if len(chunk.pictures):
                await lane.start(partial(file.put, chunk.pictures))
            on_chunk()
        outcome = await asyncio.shield(flow.outcome)
        if outcome.error is not None:
            raise outcome.error
        if file.frames != num_frames:
            message = f"the model made {file.frames} pictures; {num_frames} were asked for"
            raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
        await lane.start(file.finish)
    finally:
        await lane.idle()
        await lane.start(file.discard)
