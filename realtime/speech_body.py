"""The body of `POST /v1/audio/speech`: read within limits, parsed, and checked before anything is admitted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import msgspec
from aiohttp import web

from streamsynth.codecs.formats import AudioFormat
from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.realtime.fields import HTTP_ONLY, SpeechSettings, parse_choice, parse_flag, parse_speech_fields
from streamsynth.realtime.limits import Limits


class Delivery(Enum):
    """How the answer leaves: as it is made, as events, or as one finished file of known length."""

    LIVE = auto()
    EVENTS = auto()
    COMPLETED = auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeechBody:
    text: str
    settings: SpeechSettings
    delivery: Delivery


async def read_body(request: web.BaseRequest, limits: Limits) -> bytes:
    """The whole body. Raises `message_too_large`, `invalid_value` if broken, `idle_timeout` if it does not come."""
    too_large = StreamSynthError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the body has more than {limits.body_bytes} bytes, the limit"
    )
    if (request.content_length or 0) > limits.body_bytes:
        raise too_large
    try:
        async with asyncio.timeout(limits.body_s):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_s:g} s"
        raise StreamSynthError(ErrorCode.IDLE_TIMEOUT, message) from None
    except web.RequestPayloadError:
        raise StreamSynthError(ErrorCode.INVALID_VALUE, "the body's encoding is broken") from None


def parse_speech_body(body: bytes, models: Mapping[str, Pipeline], limits: Limits) -> SpeechBody:
    """Raises StreamSynthError naming the field and its limit."""
    fields = _decode(body)
    settings = parse_speech_fields(fields, models, default_format=AudioFormat.MP3, allowed=HTTP_ONLY)
    return SpeechBody(
        text=_parse_input(fields.get("input"), limits.text_characters),
        settings=settings,
        delivery=_parse_delivery(fields, settings.format),
    )


def _decode(body: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StreamSynthError(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise StreamSynthError(ErrorCode.INVALID_JSON, "the body must be a JSON object")
    return fields


def _parse_input(value: object, limit: int) -> str:
    if value is None:
        raise StreamSynthError(ErrorCode.MISSING_FIELD, "input is missing: the text to speak", param="input")
    if not isinstance(value, str):
        raise invalid_value("input", value, "a string")
    if not value.strip():
        # The text was forgotten; text that a voice has no sound for was not, and is an empty utterance.
        raise StreamSynthError(ErrorCode.INVALID_VALUE, "input is blank; there is nothing to speak", param="input")
    if len(value) > limit:
        message = f"input has {len(value)} characters; the limit is {limit}"
        raise StreamSynthError(ErrorCode.TEXT_TOO_LONG, message, param="input")
    return value


def _parse_delivery(fields: Mapping[str, object], audio_format: AudioFormat) -> Delivery:
    """A wav file that nobody asked to stream has true sizes; every other format can be played while it comes.

    A flac file has them too where `stream` is false: readers that seek (libsndfile) cannot read one of unknown length.
    """
    stream = parse_flag("stream", fields.get("stream"))
    stream_format = parse_choice("stream_format", fields.get("stream_format"), ("audio", "sse"))
    if stream_format == "sse":
        return Delivery.EVENTS
    if stream is True or stream_format == "audio":
        return Delivery.LIVE
    finished = audio_format is AudioFormat.WAV or (audio_format is AudioFormat.FLAC and stream is False)
    return Delivery.COMPLETED if finished else Delivery.LIVE
