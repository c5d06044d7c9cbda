"""A file as an answer: read in a thread, written at the reader's pace, whole or the one part that was asked for."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import closing
from pathlib import Path

from aiohttp import web

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.http_errors import error_response
from streamsynth.realtime.http_work import work_of
from streamsynth.realtime.http_writer import BodyWriter
from streamsynth.realtime.keys import LIMITS

_READ_BYTES = 256 * 1024
_LAST_NONE = re.compile(r"bytes=-0+")
"""The last no bytes: what parses a range takes it for all of them."""


async def send_file(request: web.Request, path: Path, content_type: str) -> web.StreamResponse:
    """Raises NOT_FOUND if it has just gone. Who opened it reads it to its end, whatever becomes of its name."""
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        raise StreamSynthError(ErrorCode.NOT_FOUND, "the file is no longer there", param="video_id") from None
    with closing(file), work_of(request):
        size = os.fstat(file.fileno()).st_size
        status, part = _asked(request, size)
        if status == 416:
            return _unsatisfiable(request.headers["Range"], size)
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(part)),
            "Accept-Ranges": "bytes",
            "Cache-Control": "private, max-age=3600",
            "Content-Disposition": f'inline; filename="{path.name}"',
        }
        if status == 206:
            headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
        writer = BodyWriter(request, request.app[LIMITS].write_stall_s, status=status)
        await writer.start(headers)
        if request.method != "HEAD":
            file.seek(part.start)
            for at in range(part.start, part.stop, _READ_BYTES):
                data = await asyncio.to_thread(file.read, min(_READ_BYTES, part.stop - at))
                await writer.write(data)
        return await writer.end()


def _unsatisfiable(asked: str, size: int) -> web.Response:
    message = f"Range is {asked[:60]!r}; it must have some of the {size} bytes that there are"
    response = error_response(StreamSynthError(ErrorCode.RANGE_NOT_SATISFIABLE, message, param="Range"))
    response.headers["Content-Range"] = f"bytes */{size}"
    return response


def _asked(request: web.Request, size: int) -> tuple[int, range]:
    """Status and bytes: all of them where there is no Range header, or none that we understand."""
    if _LAST_NONE.fullmatch(request.headers.get("Range", "")):
        return 416, range(0)
    try:
        given = request.http_range
    except ValueError:
        given = slice(None)
    if given.start is None and given.stop is None:
        return 200, range(size)
    part = range(*given.indices(size))
    return (206 if part else 416), part
