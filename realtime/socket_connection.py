"""One WebSocket connection, whatever is spoken on it: the shell that joins a socket and a session's state machine."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Protocol

from aiohttp import WebSocketError, WSCloseCode, WSMsgType, web

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.frame_queue import Frame
from streamsynth.realtime.keys import ADMISSION, CALLER, DRAINING, LIMITS, REQUEST_ID
from streamsynth.realtime.liveness import Due, Liveness
from streamsynth.realtime.outbound import Outbound
from streamsynth.realtime.ws_transport import QuietWebSocket, WebSocketTransport

logger = logging.getLogger(__name__)


class Session(Protocol):
    """A state machine that is told everything, with the time, and does nothing itself."""

    def take(self, now_s: float) -> Frame | None: ...

    def refuse(self, error: StreamSynthError) -> None: ...

    def tick(self, now_s: float) -> None: ...

    @property
    def next_tick_s(self) -> float | None: ...

    def drain(self, reason: str, now_s: float) -> None: ...

    def expire(self) -> None: ...

    def stalled(self) -> None: ...

    def peer_died(self) -> None: ...

    def misframed(self, code: int, reason: str) -> None: ...

    def crashed(self) -> None: ...

    def closed_by_peer(self) -> None: ...

    def lost(self) -> None: ...


class SocketConnection(ABC):
    """From the handshake until nothing is left of the connection. Subclasses read messages and do the effects."""

    def __init__(
        self, request: web.Request, websocket: QuietWebSocket, transport: WebSocketTransport, session: Session
    ) -> None:
        now = monotonic()
        self._limits = request.app[LIMITS]
        self._id = request[REQUEST_ID]
        self._websocket = websocket
        self._transport = transport
        self._session = session
        self._outbound = Outbound(
            transport,
            take=self._take,
            sent=self._settle,
            stalled=self._stalled,
            write_stall_s=self._limits.write_stall_s,
            close_wait_s=self._limits.close_wait_s,
        )
        self._liveness = Liveness(
            now, ping_interval_s=self._limits.ping_interval_s, dead_peer_s=self._limits.dead_peer_s
        )
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def _received(self, data: str) -> None:
        """Read a text message and tell the session; what is wrong with it is refused."""

    @abstractmethod
    def _apply_effects(self) -> None:
        """Do what the session wants done."""

    @abstractmethod
    def _work(self) -> Iterable[asyncio.Task[None]]:
        """What still runs for this connection. It has been told to stop when this is asked."""

    async def serve(self) -> None:
        """Returns when the connection has ended and the workers have let go. Cancelled, it aborts the connection."""
        writer = asyncio.create_task(self._outbound.run(), name=f"writer {self._id}")
        try:
            self._settle()
            await self._receive_until_closed()
        finally:
            await self._wind_up(writer)

    def drain(self) -> None:
        self._session.drain("the server is shutting down", monotonic())
        self._settle()

    def expire(self) -> None:
        self._session.expire()
        self._settle()

    async def _receive_until_closed(self) -> None:
        while True:
            message = await self._websocket.receive()
            self._liveness.heard(monotonic())
            match message.type:
                case WSMsgType.TEXT:
                    self._guarded(partial(self._received, message.data))
                case WSMsgType.BINARY:
                    text = "messages are text; this one is binary"
                    self._session.refuse(StreamSynthError(ErrorCode.BINARY_NOT_ALLOWED, text))
                case WSMsgType.PING:
                    self._outbound.pong(message.data)
                case WSMsgType.PONG:
                    pass
                case WSMsgType.ERROR:
                    await self._misframed(message.data)
                    return
                case _:
                    self._session.closed_by_peer()
                    self._settle()
                    return
            self._settle()
            # A client that sends without a pause must not keep the loop from writing its answers, nor from the others.
            await asyncio.sleep(0)

    async def _misframed(self, error: BaseException) -> None:
        """The peer broke the WebSocket protocol itself, and nothing more can be read from it."""
        if not isinstance(error, WebSocketError):
            return
        if error.code == WSCloseCode.MESSAGE_TOO_BIG:
            text = f"a message is larger than {self._limits.config_message_bytes} bytes, the limit"
            self._session.refuse(StreamSynthError(ErrorCode.MESSAGE_TOO_LARGE, text))
        else:
            self._session.misframed(error.code, str(error))
        self._settle()
        # The peer's closing frame cannot be read either: give it the time to read ours.
        await asyncio.sleep(self._limits.close_wait_s)

    async def _wind_up(self, writer: asyncio.Task[None]) -> None:
        self._session.lost()
        self._settle()
        if self._timer is not None:
            self._timer.cancel()
        self._outbound.abandon()
        try:
            await asyncio.wait({writer, *self._work()})
        except asyncio.CancelledError:
            self._transport.abort()
            raise
        finally:
            self._outbound.release()

    def _take(self) -> Frame | None:
        return self._session.take(monotonic())

    def _stalled(self) -> None:
        self._session.stalled()
        self._settle()

    def _settle(self) -> None:
        """Do what the session wants done. Called after everything that it was told."""
        self._apply_effects()
        self._outbound.nudge()
        self._arm()

    def _arm(self) -> None:
        """See to it that `_tick` runs when a clock can have run out; if it runs too early, it arms again."""
        session_s = self._session.next_tick_s
        if session_s is None:
            return
        delay_s = min(session_s, self._liveness.next_s) - monotonic()
        due_s = asyncio.get_running_loop().time() + delay_s
        if self._timer is None or due_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(due_s, self._guarded, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = monotonic()
        silent_s = self._transport.silent_s()
        if silent_s is not None:
            self._liveness.heard(now - silent_s)
        match self._liveness.check(now):
            case Due.PING:
                self._outbound.ping()
            case Due.DEAD:
                self._session.peer_died()
        self._session.tick(now)
        self._settle()

    def _guarded(self, step: Callable[[], None]) -> None:
        """A fault of ours ends this session, says so, and no other."""
        try:
            step()
        except Exception:
            logger.exception("session %s failed", self._id)
            self._session.crashed()
            self._settle()


async def serve_socket(
    request: web.Request, connect: Callable[[web.Request, QuietWebSocket, WebSocketTransport], SocketConnection]
) -> web.StreamResponse:
    """The body of a socket's route. Raises StreamSynthError only before the handshake."""
    draining = request.app[DRAINING]
    connection: SocketConnection | None = None

    def drain() -> None:
        if connection is not None:
            connection.drain()

    def expire() -> None:
        if connection is not None:
            connection.expire()

    with draining.work(on_begin=drain, on_expiry=expire), request.app[ADMISSION].open_session(request[CALLER]):
        websocket = QuietWebSocket(request.app[LIMITS].config_message_bytes)
        transport = await WebSocketTransport.open(websocket, request)
        connection = connect(request, websocket, transport)
        if draining.begun:
            drain()
        await connection.serve()
    return websocket
