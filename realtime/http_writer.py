"""One streamed answer: every write waits for its reader, but not for ever."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager

from aiohttp import HttpVersion11, web

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.tcp_peer import TcpPeer

_BUFFER_BYTES = 16 * 1024
_STALL_CHECKS = 8
_WRITE_BYTES = 16 * 1024  # even: every write holds whole samples


def break_off(request: web.BaseRequest) -> None:
    """End an answer that has begun and cannot be finished, so that no client takes it for a whole one."""
    transport = request.transport
    if transport is None:
        return
    if request.version < HttpVersion11:
        # Its body ends with the connection: only a reset tells a broken end from a good one.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class BodyWriter:
    """Sends the headers with `start`, then the body. Cancelling a write leaves an answer that can only be aborted."""

    def __init__(self, request: web.Request, stall_s: float, *, status: int = 200) -> None:
        self._request = request
        self._stall_s = stall_s
        self._response = web.StreamResponse(status=status)

    async def start(self, headers: Mapping[str, str]) -> None:
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client left")
        # aiohttp waits for its reader every 64 KiB only, and the transport keeps as much again: seconds of mp3.
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._response.headers.update(headers)
        await self._response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Returns once the transport has accepted the data. Raises `stalled_reader` if the client reads nothing."""
        for offset in range(0, len(data), _WRITE_BYTES):
            await self._unstalled(self._write(data[offset : offset + _WRITE_BYTES]))

    async def end(self) -> web.StreamResponse:
        """Returns once the kernel has everything: nothing is lost if the server ends now."""
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits(high=0)
        await self._unstalled(self._response.write_eof())
        return self._response

    async def _write(self, data: bytes) -> None:
        await self._response.write(data)
        await self._request.writer.drain()

    async def _unstalled(self, write: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._stall_s) as limit:
                with self._extended(limit):
                    await write
        except TimeoutError:
            message = f"the client read nothing for {self._stall_s:g} s"
            raise StreamSynthError(ErrorCode.STALLED_READER, message) from None

    @contextmanager
    def _extended(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Put the limit off whenever the client has taken something: then it is slow, not stalled."""
        loop = asyncio.get_running_loop()
        taken = self._taken_bytes()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal taken, timer
            progress = taken < (taken := self._taken_bytes())
            if progress and not limit.expired():
                limit.reschedule(loop.time() + self._stall_s)
            timer = loop.call_later(self._stall_s / _STALL_CHECKS, look)

        timer = loop.call_later(self._stall_s / _STALL_CHECKS, look)
        try:
            yield
        finally:
            timer.cancel()

    def _taken_bytes(self) -> int:
        transport = self._request.transport
        return TcpPeer(transport).taken_bytes() if transport is not None else 0
