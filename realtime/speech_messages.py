"""Every message of the speech socket: frozen tagged structs in two closed unions, the client's and the server's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import Limits

_Index = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class ClientMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """What a client may send; unknown fields are refused by name."""


class SessionConfig(ClientMessage, frozen=True, tag="session.config"):
    """The fields as they came, unchecked: `session_config.parse_session_config` checks them."""

    fields: Mapping[str, Any]


class InputText(ClientMessage, frozen=True, tag="input.text"):
    text: str


class InputDone(ClientMessage, frozen=True, tag="input.done"):
    pass


class InputCommit(InputDone, frozen=True, tag="input.commit"):
    """Another name of `input.done`."""


class InputCancel(ClientMessage, frozen=True, tag="input.cancel"):
    utterance_index: _Index | None = None


class SessionPing(ClientMessage, frozen=True, tag="session.ping"):
    pass


class SessionClose(ClientMessage, frozen=True, tag="session.close"):
    pass


class ServerMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What the server sends. A field whose default is None is left out when it has nothing to say."""


class EffectiveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the next utterance is spoken with. `seed` is a decimal string where JavaScript would round the number."""

    model: str
    voice: str
    response_format: str
    sample_rate: int
    speed: float
    seed: int | str | None
    max_new_tokens: int | None
    options: Mapping[str, Any]
    split_granularity: str
    stream_audio: bool
    close_on_done: bool


class SessionConfigured(ServerMessage, frozen=True, kw_only=True, tag="session.configured"):
    config: EffectiveConfig
    ignored: tuple[str, ...]
    limits: Mapping[str, float]


class AudioStart(ServerMessage, frozen=True, kw_only=True, omit_defaults=False, tag="audio.start"):
    """`sentence_text` is null where the text would not fit into one message."""

    utterance_index: int
    sentence_index: int
    sentence_text: str | None
    format: str
    sample_rate: int
    channels: int
    request_id: str


class AudioDone(ServerMessage, frozen=True, kw_only=True, tag="audio.done"):
    utterance_index: int
    sentence_index: int
    total_bytes: int
    total_samples: int
    error: bool


class SessionDone(ServerMessage, frozen=True, kw_only=True, omit_defaults=False, tag="session.done"):
    utterance_index: int
    total_sentences: int
    status: str
    total_samples: int
    finish_reason: str | None = None


class InputCancelled(ServerMessage, frozen=True, kw_only=True, tag="input.cancelled"):
    utterance_index: int
    samples_sent: int


class SessionPong(ServerMessage, frozen=True, kw_only=True, tag="session.pong"):
    pass


class Error(ServerMessage, frozen=True, kw_only=True, tag="error"):
    code: str
    message: str
    fatal: bool
    param: str | None = None
    request_id: str | None = None
    utterance_index: int | None = None
    partial_audio: bool | None = None
    retry_after_ms: int | None = None

    @classmethod
    def of(
        cls,
        error: StreamSynthError,
        *,
        fatal: bool = False,
        utterance_index: int | None = None,
        request_id: str | None = None,
        partial_audio: bool | None = None,
    ) -> Error:
        return cls(
            code=error.code.value,
            message=error.message,
            fatal=fatal,
            param=error.param,
            request_id=request_id,
            utterance_index=utterance_index,
            partial_audio=partial_audio,
            retry_after_ms=error.retry_after_ms,
        )


CLIENT_MESSAGES: Mapping[str, type[ClientMessage]] = {
    "session.config": SessionConfig,
    "input.text": InputText,
    "input.done": InputDone,
    "input.commit": InputCommit,
    "input.cancel": InputCancel,
    "session.ping": SessionPing,
    "session.close": SessionClose,
}
SERVER_MESSAGES: Mapping[str, type[ServerMessage]] = {
    "session.configured": SessionConfigured,
    "audio.start": AudioStart,
    "audio.done": AudioDone,
    "session.done": SessionDone,
    "input.cancelled": InputCancelled,
    "session.pong": SessionPong,
    "error": Error,
}

_encoder = msgspec.json.Encoder()


def encode_message(message: ServerMessage) -> bytes:
    """The message as JSON in UTF-8."""
    return _encoder.encode(message)


class _Envelope(msgspec.Struct):
    type: str


_envelope = msgspec.json.Decoder(_Envelope)
_any_object = msgspec.json.Decoder(dict[str, Any])
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in CLIENT_MESSAGES.items() if kind is not SessionConfig}


def decode_client_message(data: str, limits: Limits) -> ClientMessage:
    """Parse one text message. Raises StreamSynthError: `invalid_json`, `unknown_message`, `message_too_large`, or what
    is wrong with which field.
    """
    try:
        # Skips every other field without building it: a large message costs little until its type and size are known.
        kind = _envelope.decode(data).type
        if kind not in CLIENT_MESSAGES:
            raise _unknown_message(kind)
        _check_size(kind, data, limits)
        if kind == "session.config":
            fields = _any_object.decode(data)
            del fields["type"]
            return SessionConfig(fields)
        return _decoders[kind].decode(data)
    except msgspec.ValidationError as error:
        raise _validation_error(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise StreamSynthError(ErrorCode.INVALID_JSON, f"the message is not valid JSON: {error}") from None


def _unknown_message(kind: str) -> StreamSynthError:
    known = ", ".join(CLIENT_MESSAGES)
    return StreamSynthError(
        ErrorCode.UNKNOWN_MESSAGE, f"there is no message {_shortened(kind)!r}; a client may send {known}", param="type"
    )


def _check_size(kind: str, data: str, limits: Limits) -> None:
    limit = limits.config_message_bytes if kind == "session.config" else limits.message_bytes
    if len(data) * 4 <= limit:  # a character is at most 4 bytes
        return
    size = len(data.encode())
    if size > limit:
        message = f"{kind} has {size} bytes; the limit is {limit}"
        raise StreamSynthError(ErrorCode.MESSAGE_TOO_LARGE, message)


_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_AT_PATH = re.compile(r"(.*) - at `\$\.(\w+).*`", re.DOTALL)


def _validation_error(problem: str) -> StreamSynthError:
    """msgspec says only in words which field it means."""
    if found := _UNKNOWN.match(problem):
        name = _shortened(found[1])
        return StreamSynthError(ErrorCode.UNKNOWN_FIELD, f"there is no field {name!r}", param=name)
    if found := _MISSING.match(problem):
        return StreamSynthError(ErrorCode.MISSING_FIELD, f"{found[1]} is missing", param=found[1])
    if found := _AT_PATH.match(problem):
        return StreamSynthError(ErrorCode.INVALID_VALUE, f"{found[2]}: {_shortened(found[1])}", param=found[2])
    return StreamSynthError(ErrorCode.INVALID_JSON, f"a message is one JSON object: {_shortened(problem)}")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
