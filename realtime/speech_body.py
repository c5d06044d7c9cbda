"""The body of `POST /v1/audio/speech`: parsed, and checked before anything is admitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from streamsynth.codecs.formats import AudioFormat
from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.realtime.fields import HTTP_ONLY, SpeechSettings, parse_choice, parse_flag, parse_speech_fields
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.request_body import decode_object


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


def parse_speech_body(body: bytes, models: Mapping[str, Pipeline], limits: Limits) -> SpeechBody:
    """Raises StreamSynthError naming the field and its limit."""
    fields = decode_object(body)
    settings = parse_speech_fields(fields, models, default_format=AudioFormat.MP3, allowed=HTTP_ONLY)
    return SpeechBody(
        text=_parse_input(fields.get("input"), limits.text_characters),
        settings=settings,
        delivery=_parse_delivery(fields, settings.format),
    )


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
