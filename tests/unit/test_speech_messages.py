"""Messages of the speech socket: what is accepted, and how what is not accepted is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime import speech_messages as wire
from streamsynth.realtime import video_messages as video
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.messages import FirstMessage
from streamsynth.realtime.speech_messages import CLIENT_MESSAGES, SERVER_MESSAGES, decode_client_message

LIMITS = Limits()


def decode(message: Any, limits: Limits = LIMITS) -> wire.ClientMessage:
    return decode_client_message(message if isinstance(message, str) else json.dumps(message), limits)


def refusal(message: Any, limits: Limits = LIMITS) -> tuple[ErrorCode, str | None]:
    with pytest.raises(StreamSynthError) as caught:
        decode(message, limits)
    assert len(caught.value.message) < 600
    return caught.value.code, caught.value.param


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"type": "input.text", "text": " a\n"}, wire.InputText(" a\n")),
        ({"text": "late type", "type": "input.text"}, wire.InputText("late type")),
        ({"type": "input.done"}, wire.InputDone()),
        ({"type": "input.commit"}, wire.InputCommit()),
        ({"type": "input.cancel"}, wire.InputCancel()),
        ({"type": "input.cancel", "utterance_index": None}, wire.InputCancel()),
        ({"type": "input.cancel", "utterance_index": 3}, wire.InputCancel(3)),
        ({"type": "session.ping"}, wire.SessionPing()),
        ({"type": "session.close"}, wire.SessionClose()),
        ({"type": "session.config"}, wire.SessionConfig({})),
        ({"type": "session.config", "voice": {"id": "x"}}, wire.SessionConfig({"voice": {"id": "x"}})),
    ],
)
def test_each_message_of_the_protocol_is_read(message: dict[str, Any], expected: wire.ClientMessage) -> None:
    assert decode(message) == expected


def test_commit_is_another_name_of_done() -> None:
    assert isinstance(decode({"type": "input.commit"}), wire.InputDone)


@pytest.mark.parametrize("data", ["", "{", "nonsense", '{"type":"input.done"} x', "[1]", '"text"', "null", "NaN"])
def test_what_is_no_json_object_is_invalid_json(data: str) -> None:
    assert refusal(data) == (ErrorCode.INVALID_JSON, None)


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_deep_nesting_is_invalid_json_and_no_crash(bracket: str) -> None:
    assert refusal('{"type":"session.config","x":' + bracket * 20_000)[0] is ErrorCode.INVALID_JSON


def test_a_lone_surrogate_is_invalid_json() -> None:
    assert refusal('{"type":"input.text","text":"\\ud800"}')[0] is ErrorCode.INVALID_JSON


def test_a_message_without_a_type_misses_it() -> None:
    assert refusal({"text": "hi"}) == (ErrorCode.MISSING_FIELD, "type")


@pytest.mark.parametrize("kind", ["", "input.Text", "response.create", "x" * 5000])
def test_an_unknown_type_is_an_unknown_message(kind: str) -> None:
    assert refusal({"type": kind, "text": "hi"}) == (ErrorCode.UNKNOWN_MESSAGE, "type")


@pytest.mark.parametrize("kind", [3, None, ["input.text"], {}])
def test_a_type_that_is_no_string_is_an_invalid_value(kind: object) -> None:
    assert refusal({"type": kind}) == (ErrorCode.INVALID_VALUE, "type")


@pytest.mark.parametrize("name", ["extra", "utterance_index", "`", "événement", "x y"])
@pytest.mark.parametrize("kind", ["input.text", "input.done", "session.ping", "session.close"])
def test_an_unknown_field_is_named(kind: str, name: str) -> None:
    assert refusal({"type": kind, "text" if kind == "input.text" else name: "", name: 1}) == (
        ErrorCode.UNKNOWN_FIELD,
        name,
    )


def test_a_long_unknown_name_is_shortened() -> None:
    code, param = refusal({"type": "input.done", "n" * 1000: 1})
    assert code is ErrorCode.UNKNOWN_FIELD
    assert param == "n" * 57 + "..."


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"type": "input.text", "text": 3}, "text"),
        ({"type": "input.text", "text": None}, "text"),
        ({"type": "input.cancel", "utterance_index": "0"}, "utterance_index"),
        ({"type": "input.cancel", "utterance_index": True}, "utterance_index"),
        ({"type": "input.cancel", "utterance_index": 0.5}, "utterance_index"),
        ({"type": "input.cancel", "utterance_index": 2**63}, "utterance_index"),
        ({"type": "input.cancel", "utterance_index": 10**5000}, "utterance_index"),
    ],
)
def test_a_wrong_type_is_an_invalid_value_naming_the_field(message: dict[str, Any], field: str) -> None:
    data = msgspec.json.encode({"type": message["type"]}).decode()
    value = message[field]
    text = "1" + "0" * 5000 if isinstance(value, int) and value > 2**64 else json.dumps(value)
    assert refusal(f'{data[:-1]},"{field}":{text}}}') == (ErrorCode.INVALID_VALUE, field)


def test_a_refused_field_of_any_message_says_its_value_and_what_is_allowed() -> None:
    """None but those of first messages, which the model's own limits are for."""
    refused = {}
    for decode_message, messages in (
        (decode_client_message, CLIENT_MESSAGES),
        (video.decode_client_message, video.CLIENT_MESSAGES),
    ):
        for name, kind in messages.items():
            for field in () if issubclass(kind, FirstMessage) else kind.__struct_fields__:
                with pytest.raises(StreamSynthError) as caught:
                    decode_message(json.dumps({"type": name, field: [-1]}), LIMITS)
                assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, field)
                refused[field] = caught.value.message
    assert refused == {
        "text": "text is [-1]; it must be a string",
        "utterance_index": f"utterance_index is [-1]; it must be an integer within {-(2**63)}..{2**63 - 1} or null",
        "interaction": "interaction is [-1]; it must be an object",
        "pts": f"pts is [-1]; it must be an integer within 0..{2**62}",
    }
    with pytest.raises(StreamSynthError, match=r"^type is 5; it must be a string$"):
        decode({"type": 5})


def test_missing_text_is_named() -> None:
    assert refusal({"type": "input.text"}) == (ErrorCode.MISSING_FIELD, "text")


def test_a_type_that_is_given_twice_is_one_of_ours_or_refused() -> None:
    assert refusal('{"type":"session.config","type":"input.text","text":"a"}')[0] is ErrorCode.INVALID_VALUE


@pytest.mark.parametrize("text", ["a", "é", "🙂"])
def test_the_size_limit_is_in_bytes_and_smaller_for_all_but_config(text: str) -> None:
    limits = Limits(message_bytes=1000, config_message_bytes=3000)
    size = len(text.encode())
    fits = text * ((1000 - len('{"type":"input.text","text":""}')) // size)
    assert decode(f'{{"type":"input.text","text":"{fits}"}}', limits) == wire.InputText(fits)
    assert refusal(f'{{"type":"input.text","text":"{fits + text * 4}"}}', limits)[0] is ErrorCode.MESSAGE_TOO_LARGE
    config = f'{{"type":"session.config","instructions":"{fits + text * 4}"}}'
    assert isinstance(decode(config, limits), wire.SessionConfig)
    assert refusal(config[:-2] + text * 3000 + '"}', limits)[0] is ErrorCode.MESSAGE_TOO_LARGE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(
    st.sampled_from(["text", "utterance_index", "voice", "x"]) | st.text(max_size=8), JSON, max_size=4
)


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from([*CLIENT_MESSAGES, "nonsense"]) | JSON, fields=FIELDS)
def test_any_object_is_a_message_or_a_typed_refusal(kind: object, fields: dict[str, Any]) -> None:
    data = json.dumps({**fields, "type": kind})
    try:
        message = decode(data)
    except StreamSynthError as error:
        assert error.rendering.http_status in (400, 413)
        assert wire.encode_message(wire.Error.of(error))
    else:
        assert CLIENT_MESSAGES[str(kind)] is type(message)


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_any_text_is_a_message_or_a_typed_refusal(data: str) -> None:
    with pytest.raises(StreamSynthError):
        decode(data)


def test_both_unions_are_tagged_frozen_and_closed() -> None:
    for messages in (CLIENT_MESSAGES, SERVER_MESSAGES):
        for name, kind in messages.items():
            config = kind.__struct_config__
            assert (config.tag_field, config.tag, config.frozen) == ("type", name, True)
    assert all(kind.__struct_config__.forbid_unknown_fields for kind in CLIENT_MESSAGES.values())
    modules = vars(wire).values()
    structs = {kind for kind in modules if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}
    for base, messages in ((wire.ClientMessage, CLIENT_MESSAGES), (wire.ServerMessage, SERVER_MESSAGES)):
        bases = {base, wire.FirstMessage}
        assert {kind for kind in structs if issubclass(kind, base)} - bases == set(messages.values())


def test_an_error_carries_what_is_known_and_leaves_out_the_rest() -> None:
    error = StreamSynthError(ErrorCode.OVERLOADED, "full", retry_after_ms=1500)
    sent = json.loads(wire.encode_message(wire.Error.of(error, utterance_index=0, partial_audio=False)))
    assert sent == {
        "type": "error",
        "code": "overloaded",
        "message": "full",
        "fatal": False,
        "utterance_index": 0,
        "partial_audio": False,
        "retry_after_ms": 1500,
    }


def test_fields_that_a_client_waits_for_are_there_even_when_null() -> None:
    start = wire.AudioStart(
        utterance_index=0,
        sentence_index=0,
        sentence_text=None,
        format="pcm",
        sample_rate=24_000,
        channels=1,
        request_id="utt-1",
    )
    assert json.loads(wire.encode_message(start))["sentence_text"] is None
    done = wire.SessionDone(utterance_index=0, total_sentences=0, status="completed", total_samples=0)
    assert json.loads(wire.encode_message(done))["finish_reason"] is None
