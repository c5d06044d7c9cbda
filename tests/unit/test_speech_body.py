"""The body of a speech request: its text, how the answer is to be delivered, and nothing but typed errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.speech_body import Delivery, SpeechBody, parse_speech_body
from streamsynth.testing.sine_pipeline import SINE

MODELS = {"sine": SINE}
LIMITS = Limits(text_characters=100)


def parse(**fields: object) -> SpeechBody:
    return parse_speech_body(json.dumps(fields).encode(), MODELS, LIMITS)


def refusal(body: bytes) -> StreamSynthError:
    with pytest.raises(StreamSynthError) as caught:
        parse_speech_body(body, MODELS, LIMITS)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "delivery"),
    [
        ({}, Delivery.LIVE),
        ({"response_format": "wav"}, Delivery.COMPLETED),
        ({"response_format": "wav", "stream": False}, Delivery.COMPLETED),
        ({"response_format": "wav", "stream": True}, Delivery.LIVE),
        ({"response_format": "wav", "stream_format": "audio"}, Delivery.LIVE),
        ({"response_format": "wav", "stream_format": "sse"}, Delivery.EVENTS),
        ({"response_format": "pcm", "stream": True, "stream_format": "sse"}, Delivery.EVENTS),
        ({"response_format": "opus", "stream": False}, Delivery.LIVE),
        ({"response_format": "flac"}, Delivery.LIVE),
        ({"response_format": "flac", "stream": False}, Delivery.COMPLETED),
    ],
)
def test_only_a_wav_that_nobody_asked_to_stream_is_completed_first(
    fields: dict[str, object], delivery: Delivery
) -> None:
    """S5, S70: `stream` and `stream_format` are honoured in every combination."""
    assert parse(input="hello", **fields).delivery is delivery


def test_text_is_taken_as_it_is() -> None:
    assert parse(input="  Hé\u200d  \n").text == "  Hé\u200d  \n"
    assert parse(input=".").text == "."


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{}", ErrorCode.MISSING_FIELD, "input"),
        (b'{"input": null}', ErrorCode.MISSING_FIELD, "input"),
        (b'{"input": ""}', ErrorCode.INVALID_VALUE, "input"),
        (b'{"input": " \\n "}', ErrorCode.INVALID_VALUE, "input"),
        (b'{"input": ["a"]}', ErrorCode.INVALID_VALUE, "input"),
        (b'{"input": "%b"}' % (b"x" * 101), ErrorCode.TEXT_TOO_LONG, "input"),
        (b'{"input": "a", "stream": 1}', ErrorCode.INVALID_VALUE, "stream"),
        (b'{"input": "a", "stream_format": "raw"}', ErrorCode.INVALID_VALUE, "stream_format"),
        (b'{"input": "a", "ack": true}', ErrorCode.UNSUPPORTED_FIELD, "ack"),
        (b"", ErrorCode.INVALID_JSON, None),
        (b"[]", ErrorCode.INVALID_JSON, None),
        (b"\xff\xfe", ErrorCode.INVALID_JSON, None),
        (b'{"input": "\xff"}', ErrorCode.INVALID_JSON, None),
        (b'{"input": "\\ud800"}', ErrorCode.INVALID_JSON, None),
        (b'{"input": NaN}', ErrorCode.INVALID_JSON, None),
        (b"[" * 100_000, ErrorCode.INVALID_JSON, None),
        (b'{"input":' * 100_000, ErrorCode.INVALID_JSON, None),
    ],
)
def test_what_cannot_be_spoken_is_refused_by_name(body: bytes, code: ErrorCode, param: str | None) -> None:
    """T7.9, S68"""
    error = refusal(body)
    assert (error.code, error.param) == (code, param)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_typed_error(body: bytes) -> None:
    assert refusal(body).rendering.http_status in (400, 404)


_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("wav") | st.just("sse")
)
_NAMES = st.sampled_from(["input", "voice", "stream", "stream_format", "seed", "speed", "response_format"]) | st.text()


@given(st.dictionaries(_NAMES, _VALUES, max_size=5))
def test_any_object_gives_a_body_or_a_typed_error(fields: dict[str, object]) -> None:
    try:
        body = parse(**fields)
    except StreamSynthError as error:
        assert error.rendering.http_status in (400, 404)
    else:
        assert body.text == fields["input"]
        body.text.encode()
