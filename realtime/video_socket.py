"""`WS /v1/realtime/video`: the shell that joins a socket, the session's state machine and the making of the video."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from functools import partial
from ipaddress import ip_address
from time import monotonic

from aiohttp import web

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.observe.metrics import Metrics
from streamsynth.observe.video_metrics import VideoMeter
from streamsynth.realtime.frame_queue import text_frame
from streamsynth.realtime.keys import ADMISSION, CALLER, LIMITS, METRICS, RUNTIME
from streamsynth.realtime.socket_connection import SocketConnection, serve_socket
from streamsynth.realtime.socket_session import End
from streamsynth.realtime.video_events import Effect, FinishVideo, StartVideo, Steer, StopVideo
from streamsynth.realtime.video_fields import parse_video_fields
from streamsynth.realtime.video_maker import Studio, VideoMaker
from streamsynth.realtime.video_messages import decode_client_message
from streamsynth.realtime.video_session import VideoSession
from streamsynth.realtime.ws_transport import QuietWebSocket, WebSocketTransport


async def video_socket(request: web.Request) -> web.StreamResponse:
    """The route."""
    return await serve_socket(request, VideoConnection)


class VideoConnection(SocketConnection):
    """One connection, which is one video. Its maker is the last that was begun: those before were refused."""

    def __init__(self, request: web.Request, websocket: QuietWebSocket, transport: WebSocketTransport) -> None:
        app = request.app
        parse_start = partial(
            parse_video_fields,
            models=app[RUNTIME].video_models,
            payload_bytes=app[LIMITS].video_message_bytes,
            loopback=_is_loopback(request.remote),
        )
        observer = _SocketObserver(app[METRICS])
        self._video = VideoSession(parse_start, app[LIMITS], observer, _draw_id, monotonic())
        super().__init__(request, websocket, transport, self._video)
        self._studio = Studio(
            session=self._video,
            runtime=app[RUNTIME],
            admission=app[ADMISSION],
            caller=request[CALLER],
            metrics=app[METRICS],
            limits=app[LIMITS],
            room=asyncio.Event(),
            moved=asyncio.Event(),
            settle=self._settle,
        )
        self._maker: VideoMaker | None = None

    def _received(self, data: str) -> None:
        try:
            message = decode_client_message(data, self._limits)
        except StreamSynthError as error:
            self._video.refuse(error)
        else:
            self._video.receive(message, monotonic())

    def _work(self) -> Iterable[asyncio.Task[None]]:
        return [self._maker.task] if self._maker is not None else []

    def _apply_effects(self) -> None:
        for effect in self._video.effects():
            self._apply(effect)
        if self._video.has_room:
            self._studio.room.set()
        else:
            self._studio.room.clear()
        self._studio.moved.set()

    def _apply(self, effect: Effect | End) -> None:
        maker = self._maker
        match effect:
            case StartVideo(settings):
                self._maker = VideoMaker(settings, self._studio)
            case Steer(interaction) if maker is not None:
                maker.steer(interaction)
            case FinishVideo() if maker is not None:
                maker.finish()
            case StopVideo() if maker is not None:
                maker.stop()
            case End(code, reason, error):
                self._outbound.end(code, reason, text_frame(error) if error is not None else None)


class _SocketObserver:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def video_started(self, model: str, fps: int, now_s: float) -> VideoMeter:
        return self._metrics.video.started(model, fps, now_s)

    def refused(self, code: ErrorCode) -> None:
        self._metrics.refused(code)


def _draw_id() -> str:
    return f"evt-{secrets.token_hex(8)}"


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ip_address(address).is_loopback
    except ValueError:
        return False
