"""`WS /v1/audio/speech/stream`: the shell that joins a socket, the session's state machine and the speakers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic

from aiohttp import WebSocketError, WSCloseCode, WSMsgType, web

from streamsynth.codecs import EncodingLane
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.observe.metrics import Metrics, Surface, UtteranceMeter
from streamsynth.realtime.frame_queue import Frame, text_frame
from streamsynth.realtime.keys import ADMISSION, CALLER, DRAINING, LIMITS, METRICS, MODEL_LIMITS, REQUEST_ID, RUNTIME
from streamsynth.realtime.liveness import Due, Liveness
from streamsynth.realtime.outbound import Outbound
from streamsynth.realtime.session_config import parse_session_config
from streamsynth.realtime.speaker import Speaker, Stand
from streamsynth.realtime.speech_events import Effect, End, FinishText, PushText, StartSynthesis, StopSynthesis
from streamsynth.realtime.speech_messages import decode_client_message
from streamsynth.realtime.speech_session import SpeechSession
from streamsynth.realtime.ws_transport import QuietWebSocket, WebSocketTransport

logger = logging.getLogger(__name__)

QUEUED_MEDIA_S = 0.5
"""Audio that may wait for the transport; what the engine makes beyond it waits in the flow, on the engine's credit."""


async def speech_socket(request: web.Request) -> web.StreamResponse:
    """The route. Raises StreamSynthError only before the handshake."""
    draining = request.app[DRAINING]
    connection: SpeechConnection | None = None

    def drain() -> None:
        if connection is not None:
            connection.drain()

    def expire() -> None:
        if connection is not None:
            connection.expire()

    with draining.work(on_begin=drain, on_expiry=expire), request.app[ADMISSION].open_session(request[CALLER]):
        websocket = QuietWebSocket(request.app[LIMITS].config_message_bytes)
        transport = await WebSocketTransport.open(websocket, request)
        connection = SpeechConnection(request, websocket, transport)
        if draining.begun:
            drain()
        await connection.serve()
    return websocket


class SpeechConnection:
    """One connection, from its handshake until nothing is left of it."""

    def __init__(self, request: web.Request, websocket: QuietWebSocket, transport: WebSocketTransport) -> None:
        app, now = request.app, monotonic()
        self._limits = app[LIMITS]
        self._id = request[REQUEST_ID]
        self._websocket = websocket
        self._transport = transport
        parse_config = partial(parse_session_config, models=app[RUNTIME].speech_models)
        observer = _SocketObserver(app[METRICS])
        self._session = SpeechSession(parse_config, self._limits, app[MODEL_LIMITS], observer, now)
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
        self._room = asyncio.Event()
        self._stand = Stand(
            session=self._session,
            runtime=app[RUNTIME],
            admission=app[ADMISSION],
            caller=request[CALLER],
            metrics=app[METRICS],
            lane=EncodingLane(),
            limits=self._limits,
            room=self._room,
            settle=self._settle,
        )
        self._speakers: dict[int, Speaker] = {}
        self._timer: asyncio.TimerHandle | None = None

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

    def _received(self, data: str) -> None:
        try:
            message = decode_client_message(data, self._limits)
        except StreamSynthError as error:
            self._session.refuse(error)
        else:
            self._session.receive(message, monotonic())

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
            await asyncio.wait({writer, *(speaker.task for speaker in self._speakers.values())})
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
        for effect in self._session.effects():
            self._apply(effect)
        if self._session.queued_media_s < QUEUED_MEDIA_S:
            self._room.set()
        else:
            self._room.clear()
        self._outbound.nudge()
        self._arm()

    def _apply(self, effect: Effect) -> None:
        match effect:
            case StartSynthesis(index, settings):
                speaker = self._speakers[index] = Speaker(index, settings, self._stand)
                speaker.task.add_done_callback(lambda _: self._speakers.pop(index))
            case PushText(index, text):
                self._speakers[index].push(text)
            case FinishText(index):
                self._speakers[index].finish_text()
            case StopSynthesis(index):
                self._speakers[index].stop()
            case End(code, reason, error):
                self._outbound.end(code, reason, text_frame(error) if error is not None else None)

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


class _SocketObserver:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def utterance_started(self, model: str, sample_rate: int, now_s: float) -> UtteranceMeter:
        return self._metrics.utterance_started(Surface.SOCKET, model, sample_rate, now_s)

    def refused(self, code: ErrorCode) -> None:
        self._metrics.refused(code)

    def cancel_acknowledged(self, seconds: float) -> None:
        self._metrics.cancel_acknowledged(seconds)
