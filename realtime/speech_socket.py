"""`WS /v1/audio/speech/stream`: the shell that joins a socket, the session's state machine and the speakers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from time import monotonic

from aiohttp import web

from streamsynth.codecs import EncodingLane
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.observe.metrics import Metrics, Surface, UtteranceMeter
from streamsynth.realtime.frame_queue import text_frame
from streamsynth.realtime.keys import ADMISSION, CALLER, LIMITS, METRICS, MODEL_LIMITS, RUNTIME
from streamsynth.realtime.session_config import parse_session_config
from streamsynth.realtime.socket_connection import SocketConnection, serve_socket
from streamsynth.realtime.speaker import Speaker, Stand
from streamsynth.realtime.speech_events import Effect, End, FinishText, PushText, StartSynthesis, StopSynthesis
from streamsynth.realtime.speech_messages import decode_client_message
from streamsynth.realtime.speech_session import SpeechSession
from streamsynth.realtime.ws_transport import QuietWebSocket, WebSocketTransport

QUEUED_MEDIA_S = 0.5
"""Audio that may wait for the transport; what the engine makes beyond it waits in the flow, on the engine's credit."""


async def speech_socket(request: web.Request) -> web.StreamResponse:
    """The route."""
    return await serve_socket(request, SpeechConnection)


class SpeechConnection(SocketConnection):
    """One connection on which one utterance after the other is spoken."""

    def __init__(self, request: web.Request, websocket: QuietWebSocket, transport: WebSocketTransport) -> None:
        app = request.app
        parse_config = partial(parse_session_config, models=app[RUNTIME].speech_models)
        observer = _SocketObserver(app[METRICS])
        self._speech = SpeechSession(parse_config, app[LIMITS], app[MODEL_LIMITS], observer, monotonic())
        super().__init__(request, websocket, transport, self._speech)
        self._room = asyncio.Event()
        self._stand = Stand(
            session=self._speech,
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

    def _received(self, data: str) -> None:
        try:
            message = decode_client_message(data, self._limits)
        except StreamSynthError as error:
            self._speech.refuse(error)
        else:
            self._speech.receive(message, monotonic())

    def _work(self) -> Iterable[asyncio.Task[None]]:
        return [speaker.task for speaker in self._speakers.values()]

    def _apply_effects(self) -> None:
        for effect in self._speech.effects():
            self._apply(effect)
        if self._speech.queued_media_s < QUEUED_MEDIA_S:
            self._room.set()
        else:
            self._room.clear()

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


class _SocketObserver:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def utterance_started(self, model: str, sample_rate: int, now_s: float) -> UtteranceMeter:
        return self._metrics.utterance_started(Surface.SOCKET, model, sample_rate, now_s)

    def refused(self, code: ErrorCode) -> None:
        self._metrics.refused(code)

    def cancel_acknowledged(self, seconds: float) -> None:
        self._metrics.cancel_acknowledged(seconds)
