"""Every message of the speech socket: frozen tagged structs in two closed unions, the client's and the server's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from streamsynth.realtime.limits import Limits
from streamsynth.realtime.messages import ClientDecoder, FirstMessage
from streamsynth.realtime.messages import ClientMessage as ClientMessage
from streamsynth.realtime.messages import Error as Error
from streamsynth.realtime.messages import ServerMessage as ServerMessage
from streamsynth.realtime.messages import SessionPing as SessionPing
from streamsynth.realtime.messages import SessionPong as SessionPong
from streamsynth.realtime.messages import encode_message as encode_message

_Index = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class SessionConfig(FirstMessage, frozen=True, tag="session.config"):
    """Checked by `session_config.parse_session_config`."""


class InputText(ClientMessage, frozen=True, tag="input.text"):
    text: str


class InputDone(ClientMessage, frozen=True, tag="input.done"):
    pass


class InputCommit(InputDone, frozen=True, tag="input.commit"):
    """Another name of `input.done`."""


class InputCancel(ClientMessage, frozen=True, tag="input.cancel"):
    utterance_index: _Index | None = None


class SessionClose(ClientMessage, frozen=True, tag="session.close"):
    pass


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

_decoder = ClientDecoder(CLIENT_MESSAGES)


def decode_client_message(data: str, limits: Limits) -> ClientMessage:
    """Parse one text message. Raises StreamSynthError for what is wrong with it."""
    return _decoder.decode(data, limits)
