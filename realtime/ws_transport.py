"""aiohttp's WebSocket with nothing automatic about it: no pings, no closing handshake, no waiting inside a send."""

from __future__ import annotations

import struct
import sys
from collections.abc import Coroutine
from typing import Any

from aiohttp import WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from streamsynth.realtime.auth import STREAMSYNTH_PROTOCOL
from streamsynth.realtime.frame_queue import Frame
from streamsynth.realtime.tcp_peer import TcpPeer

_CLOSE_CODE = struct.Struct("!H")


class QuietWebSocket(web.WebSocketResponse):
    """Selects the subprotocol `streamsynth`, never a key; leaves every frame but the handshake to its user."""

    def __init__(self, max_message_bytes: int) -> None:
        super().__init__(
            protocols=(STREAMSYNTH_PROTOCOL,),
            compress=False,
            heartbeat=None,
            autoping=False,
            autoclose=False,
            max_msg_size=max_message_bytes,
            writer_limit=sys.maxsize,  # no send drains: `WebSocketTransport.drained` is the one place that waits
        )

    async def close(self, *, code: int = 1000, message: bytes = b"", drain: bool = True) -> bool:
        """Does nothing. aiohttp calls it from `receive` and after the handler, and then waits for the peer to read
        and to answer: on a stalled reader that did not return in 25 s."""
        return False


class WebSocketTransport:
    """The sending side of a prepared QuietWebSocket."""

    def __init__(self, websocket: QuietWebSocket, writer: AbstractStreamWriter, request: web.BaseRequest) -> None:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the connection was lost during the handshake")
        # Written and not yet in the kernel is 0 between frames, so that a cancel finds all but one frame still queued.
        transport.set_write_buffer_limits(high=1, low=0)
        self._websocket = websocket
        self._writer = writer
        self._transport = transport
        self._peer = TcpPeer(transport)

    @classmethod
    async def open(cls, websocket: QuietWebSocket, request: web.Request) -> WebSocketTransport:
        """Do the handshake. Raises HTTPBadRequest if the request asks for none, ConnectionError if it is lost."""
        writer = await websocket.prepare(request)
        return cls(websocket, writer, request)

    def write(self, frame: Frame) -> None:
        kind = WSMsgType.TEXT if frame.is_text else WSMsgType.BINARY
        # A memoryview is as good as bytes to aiohttp's writer, whose annotation is narrower than what it accepts.
        payload: Any = frame.payload
        _at_once(self._websocket.send_frame(payload, kind))

    def write_ping(self) -> None:
        _at_once(self._websocket.send_frame(b"", WSMsgType.PING))

    def write_pong(self, payload: bytes) -> None:
        _at_once(self._websocket.send_frame(payload, WSMsgType.PONG))

    def write_close(self, code: int, reason: str) -> None:
        _at_once(self._websocket.send_frame(_CLOSE_CODE.pack(code) + reason.encode(), WSMsgType.CLOSE))

    async def drained(self) -> None:
        await self._writer.drain()

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def taken_bytes(self) -> int:
        return self._peer.taken_bytes()

    def abort(self) -> None:
        # A transport that the peer's end of file closed, and whose buffer has left since, has no loop any more:
        # asyncio's own abort fails on it.
        if not self._transport.is_closing() or self.buffered_bytes:
            self._transport.abort()

    def silent_s(self) -> float | None:
        """How long ago the peer was seen to live: it sent bytes, or since the last call read some. None: unknown."""
        return 0.0 if self._peer.is_reading() else self._peer.silent_s()


def _at_once(sending: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that does not wait, so that no other task runs between taking a frame and writing it."""
    try:
        sending.send(None)
    except StopIteration:
        return
    sending.close()
    raise RuntimeError("aiohttp waited inside a send")
