"""`POST /v1/audio/speech`: what can be refused is refused before the first byte, then audio leaves as it is made."""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from aiohttp import web

from streamsynth.codecs import CONTENT_TYPES, EncodingQueue, open_encoder
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import Outcome
from streamsynth.observe.metrics import Surface, UtteranceMeter
from streamsynth.realtime.http_errors import error_object
from streamsynth.realtime.http_work import until_idle, work_of
from streamsynth.realtime.http_writer import BodyWriter
from streamsynth.realtime.keys import ADMISSION, CALLER, DRAINING, LIMITS, METRICS, REQUEST_ID, RUNTIME
from streamsynth.realtime.request_body import read_body
from streamsynth.realtime.speech_body import Delivery, SpeechBody, parse_speech_body
from streamsynth.realtime.spoken_bytes import Piece, SpokenBytes

logger = logging.getLogger(__name__)

_EVENT_AUDIO_BYTES = 96 * 1024  # 128 KiB as base64; no event may exceed 256 KiB
_AUDIBLE_GAP_S = 0.2


async def create_speech(request: web.Request) -> web.StreamResponse:
    """The route. Raises StreamSynthError, also after the first byte: then the connection must be broken off."""
    started_s = time.monotonic()
    app = request.app
    limits = app[LIMITS]
    app[DRAINING].refuse_if_begun()
    body = parse_speech_body(await read_body(request, limits), app[RUNTIME].speech_models, limits)
    logger.info("speech request %s: model=%s", request[REQUEST_ID], body.settings.model)
    with work_of(request), app[ADMISSION].request(request[CALLER]) as ticket:
        await ticket.granted()
        return await _speak(request, body, started_s)


async def _speak(request: web.Request, body: SpeechBody, started_s: float) -> web.StreamResponse:
    app, settings = request.app, body.settings
    source_rate = app[RUNTIME].models[settings.model].speech.sample_rate
    live = body.delivery is not Delivery.COMPLETED
    encoder = open_encoder(settings.format, source_rate=source_rate, sample_rate=settings.sample_rate, live=live)
    meter = app[METRICS].utterance_started(Surface.HTTP, settings.model, settings.sample_rate, started_s)
    flow = app[RUNTIME].open_speech(settings.model, settings.request)
    with SpokenBytes(flow, EncodingQueue(encoder)) as spoken, _ending(meter, request[REQUEST_ID]):
        flow.send_text(body.text)
        flow.finish_text()
        answer = _Answer(request, body, spoken, meter)
        try:
            return await answer.send()
        except (asyncio.CancelledError, ConnectionError):
            await until_idle(flow, app[METRICS])
            raise


@contextmanager
def _ending(meter: UtteranceMeter, request_id: str) -> Iterator[None]:
    status = "failed"
    try:
        yield
        status = "completed"
    except (asyncio.CancelledError, ConnectionError):
        status = "cancelled"
        raise
    finally:
        meter.ended(status)
        if meter.worst_underrun_s > _AUDIBLE_GAP_S:
            logger.warning("speech request %s: a gap of %.2f s inside the speech", request_id, meter.worst_underrun_s)


class _Answer:
    """Sends one utterance in the way that was asked for."""

    def __init__(self, request: web.Request, body: SpeechBody, spoken: SpokenBytes, meter: UtteranceMeter) -> None:
        self._body = body
        self._spoken = spoken
        self._meter = meter
        self._metrics = request.app[METRICS]
        self._limits = request.app[LIMITS]
        self._writer = BodyWriter(request, self._limits.write_stall_s)

    async def send(self) -> web.StreamResponse:
        match self._body.delivery:
            case Delivery.LIVE:
                return await self._send_live()
            case Delivery.EVENTS:
                return await self._send_events()
            case Delivery.COMPLETED:
                return await self._send_completed()

    async def _send_live(self) -> web.StreamResponse:
        piece = await self._spoken.next()
        await self._writer.start(self._headers())
        while piece is not None:
            await self._write(piece, piece.data)
            piece = await self._spoken.next()
        await self._spoken.outcome()
        return await self._writer.end()

    async def _send_completed(self) -> web.StreamResponse:
        pieces = []
        while (piece := await self._spoken.next(held_bytes=self._limits.finished_file_bytes)) is not None:
            pieces.append(piece)
        await self._spoken.outcome()
        length = sum(len(piece.data) for piece in pieces)
        await self._writer.start({**self._headers(), "Content-Length": str(length)})
        for piece in pieces:
            await self._write(piece, piece.data)
        return await self._writer.end()

    async def _send_events(self) -> web.StreamResponse:
        piece = await self._spoken.next()
        await self._writer.start({**self._headers(), "Content-Type": "text/event-stream"})
        try:
            while piece is not None:
                await self._write(piece, _deltas(piece.data))
                piece = await self._spoken.next()
            await self._writer.write(_done(await self._spoken.outcome()))
        except StreamSynthError as error:
            if error.code is ErrorCode.STALLED_READER:
                raise
            self._metrics.refused(error.code)
            self._meter.ended("failed")
            await self._writer.write(_event({"type": "speech.audio.error", "error": error_object(error)}))
        return await self._writer.end()

    async def _write(self, piece: Piece, data: bytes) -> None:
        self._metrics.lead(self._spoken.lead_s())
        await self._writer.write(data)
        self._meter.sent(piece.samples, time.monotonic())

    def _headers(self) -> dict[str, str]:
        settings = self._body.settings
        headers = {
            "Content-Type": CONTENT_TYPES[settings.format],
            "X-Sample-Rate": str(settings.sample_rate),
            "X-Channels": "1",
            "X-Accel-Buffering": "no",
            "Cache-Control": "no-store",
        }
        if settings.ignored:
            headers["X-Ignored-Fields"] = ", ".join(settings.ignored)
        return headers


def _deltas(audio: bytes) -> bytes:
    """Speech events for a piece: one, or several where it is large."""
    parts = (audio[at : at + _EVENT_AUDIO_BYTES] for at in range(0, len(audio), _EVENT_AUDIO_BYTES))
    return b"".join(_event({"type": "speech.audio.delta", "audio": b64encode(part).decode()}) for part in parts)


def _done(outcome: Outcome) -> bytes:
    usage = {
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "total_tokens": outcome.input_tokens + outcome.output_tokens,
    }
    return _event({"type": "speech.audio.done", "usage": usage, "finish_reason": outcome.finish_reason})


def _event(fields: dict[str, object]) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"
