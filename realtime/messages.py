"""What the messages of every socket share: frozen tagged structs, one error message, one way to read a client's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value, unknown_field
from streamsynth.realtime.limits import Limits

S = TypeVar("S", bound=msgspec.Struct)


class ClientMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """What a client may send; unknown fields are refused by name."""


class FirstMessage(ClientMessage, frozen=True):
    """The fields as they came, unchecked: what they may be depends on the model."""

    fields: Mapping[str, Any]


class ServerMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What the server sends. A field whose default is None is left out when it has nothing to say."""


class SessionPing(ClientMessage, frozen=True, tag="session.ping"):
    pass


class SessionPong(ServerMessage, frozen=True, kw_only=True, tag="session.pong"):
    pass


class Error(ServerMessage, frozen=True, kw_only=True, tag="error"):
    code: str
    message: str
    fatal: bool
    param: str | None = None
    request_id: str | None = None
    event_id: str | None = None
    utterance_index: int | None = None
    partial_audio: bool | None = None
    retry_after_ms: int | None = None

    @classmethod
    def of(
        cls,
        error: StreamSynthError,
        *,
        fatal: bool = False,
        request_id: str | None = None,
        event_id: str | None = None,
        utterance_index: int | None = None,
        partial_audio: bool | None = None,
    ) -> Error:
        return cls(
            code=error.code.value,
            message=error.message,
            fatal=fatal,
            param=error.param,
            request_id=request_id,
            event_id=event_id,
            utterance_index=utterance_index,
            partial_audio=partial_audio,
            retry_after_ms=error.retry_after_ms,
        )


_encoder = msgspec.json.Encoder()


def encode_message(message: ServerMessage) -> bytes:
    """The message as JSON in UTF-8."""
    return _encoder.encode(message)


class _Envelope(msgspec.Struct):
    type: str


_envelope = msgspec.json.Decoder(_Envelope)
_any_object = msgspec.json.Decoder(dict[str, Any])


class ClientDecoder:
    """Reads the messages of one socket. `FirstMessage`s may be larger than the others."""

    def __init__(self, messages: Mapping[str, type[ClientMessage]]) -> None:
        self._messages = messages
        self._decoders = {name: msgspec.json.Decoder(kind) for name, kind in messages.items()}

    def decode(self, data: str, limits: Limits) -> ClientMessage:
        """Parse one text message. Raises StreamSynthError: `invalid_json`, `unknown_message`, `message_too_large`, or
        what is wrong with which field.
        """
        try:
            # Skips every other field without building it: a large message costs little until type and size are known.
            name = _refusing(data, _Envelope, _envelope).type
            kind = self._messages.get(name)
            if kind is None:
                raise self._unknown(name)
            first = issubclass(kind, FirstMessage)
            _check_size(name, data, limits.config_message_bytes if first else limits.message_bytes)
            if not first:
                return _refusing(data, kind, self._decoders[name])
            fields = _any_object.decode(data)
            del fields["type"]
            return kind(fields)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StreamSynthError(ErrorCode.INVALID_JSON, f"the message is not valid JSON: {error}") from None

    def _unknown(self, name: str) -> StreamSynthError:
        known = ", ".join(self._messages)
        message = f"there is no message {_shortened(name)!r}; a client may send {known}"
        return StreamSynthError(ErrorCode.UNKNOWN_MESSAGE, message, param="type")


def _refusing(data: str, kind: type[S], decoder: msgspec.json.Decoder[S]) -> S:
    """The struct; raises StreamSynthError for what is wrong with which field."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise validation_error(error, kind, lambda: _any_object.decode(data)) from None


def _check_size(name: str, data: str, limit: int) -> None:
    if len(data) * 4 <= limit:  # a character is at most 4 bytes
        return
    size = len(data.encode())
    if size > limit:
        message = f"{name} has {size} bytes; the limit is {limit}"
        raise StreamSynthError(ErrorCode.MESSAGE_TOO_LARGE, message)


_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$[^`]*`)?\Z", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*?)`")
_AT_PATH = re.compile(r".* - at `\$\.(\w+).*`", re.DOTALL)


def validation_error(
    error: msgspec.ValidationError, kind: type[msgspec.Struct], given: Callable[[], Mapping[str, object]]
) -> StreamSynthError:
    """The refusal for what msgspec found in the fields `given` for a struct of this kind; it says only in words which
    one it means."""
    problem = str(error)
    if found := _UNKNOWN.match(problem):
        return unknown_field(found[1])
    if found := _MISSING.match(problem):
        return StreamSynthError(ErrorCode.MISSING_FIELD, f"{found[1]} is missing", param=found[1])
    if found := _AT_PATH.match(problem):
        name, limit = found[1], _limit(kind, found[1])
        try:
            return invalid_value(name, given()[name], limit)
        except msgspec.ValidationError:  # a number of thousands of digits, which nothing reads
            return StreamSynthError(ErrorCode.INVALID_VALUE, f"{name} must be {limit}", param=name)
    return StreamSynthError(ErrorCode.INVALID_JSON, f"a message is one JSON object: {_shortened(problem)}")


def _limit(kind: type[msgspec.Struct], name: str) -> str:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    allowed = (_allowed(field.type) for field in info.fields if field.encode_name == name)
    return next(allowed, "given once")  # None of them is the message's type.


def _allowed(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_allowed(each) for each in types)
        case msgspec.inspect.NoneType():
            return "null"
        case msgspec.inspect.IntType(ge=lowest, le=highest):
            return f"an integer within {lowest}..{highest}"
        case msgspec.inspect.EnumType(cls=values):
            return "one of " + ", ".join(each.value for each in values)
        case msgspec.inspect.StrType():
            return "a string"
        case msgspec.inspect.DictType():
            return "an object"
    raise TypeError(f"no words for {kind}")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
