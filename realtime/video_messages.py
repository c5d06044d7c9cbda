"""Every message of the video socket: frozen tagged structs in two closed unions, the client's and the server's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from streamsynth.errors import invalid_value
from streamsynth.interactions.events import MAX_TRANSITION_CHUNKS, check_event
from streamsynth.interactions.messages import Interaction, Kv, Mode
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.messages import (
    ClientDecoder,
    ClientMessage,
    Error,
    FirstMessage,
    ServerMessage,
    SessionPing,
    SessionPong,
    validation_error,
)

MAX_EVENT_ID_CHARACTERS = 128

_Pts = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class SessionStart(FirstMessage, frozen=True, tag="session.start"):
    """Checked by `video_fields.parse_video_fields`."""


class SessionInteraction(ClientMessage, frozen=True, tag="session.interaction"):
    """Checked by `parse_interaction`, so that a refusal can name the event."""

    interaction: dict[str, Any]


class SessionStop(ClientMessage, frozen=True, tag="session.stop"):
    pass


class PlaybackPosition(ClientMessage, frozen=True, tag="playback.position"):
    """Where the viewer is, in ticks of `video.chunk_metadata`."""

    pts: _Pts


class VideoConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What comes. `codec` and `mime` are those of the payloads; a keyframe begins every n-th of the model's chunks."""

    width: int
    height: int
    fps: int
    codec: str
    mime: str
    chunk_frames: int
    keyframe_every_chunks: int


class VideoStart(ServerMessage, frozen=True, kw_only=True, omit_defaults=False, tag="video.start"):
    request_id: str
    model: str
    format: str
    seed: str
    config: VideoConfig
    ignored: tuple[str, ...]


class InteractionQueued(ServerMessage, frozen=True, kw_only=True, tag="session.interaction.queued"):
    request_id: str
    event_id: str


class InteractionApplied(ServerMessage, frozen=True, kw_only=True, tag="session.interaction.applied"):
    request_id: str
    event_id: str
    generation_chunk_index: int
    pts: int


class InteractionSuperseded(
    ServerMessage, frozen=True, kw_only=True, omit_defaults=False, tag="session.interaction.superseded"
):
    request_id: str
    event_id: str
    by: str | None


class ChunkMetadata(ServerMessage, frozen=True, kw_only=True, omit_defaults=False, tag="video.chunk_metadata"):
    """Belongs to the binary message that follows at once."""

    request_id: str
    kind: Literal["init", "media", "trailer"]
    transport_chunk_index: int
    generation_chunk_index: int | None
    num_frames: int
    byte_length: int
    pts: int
    timescale: int
    started_event_ids: tuple[str, ...] = ()
    active_event_ids: tuple[str, ...] = ()
    completed_event_ids: tuple[str, ...] = ()


class VideoDropped(ServerMessage, frozen=True, kw_only=True, tag="video.dropped"):
    """`count` pictures from `pts` on were made and are not sent."""

    request_id: str
    count: int
    pts: int


class SessionDone(ServerMessage, frozen=True, kw_only=True, tag="session.done"):
    """`chunks` and `frames` that were made; `stopped`: before the end that was asked for."""

    request_id: str
    chunks: int
    frames: int
    stopped: bool


CLIENT_MESSAGES: Mapping[str, type[ClientMessage]] = {
    "session.start": SessionStart,
    "session.interaction": SessionInteraction,
    "session.stop": SessionStop,
    "session.ping": SessionPing,
    "playback.position": PlaybackPosition,
}
SERVER_MESSAGES: Mapping[str, type[ServerMessage]] = {
    "video.start": VideoStart,
    "session.interaction.queued": InteractionQueued,
    "session.interaction.applied": InteractionApplied,
    "session.interaction.superseded": InteractionSuperseded,
    "video.chunk_metadata": ChunkMetadata,
    "video.dropped": VideoDropped,
    "session.done": SessionDone,
    "session.pong": SessionPong,
    "error": Error,
}

_decoder = ClientDecoder(CLIENT_MESSAGES)


def decode_client_message(data: str, limits: Limits) -> ClientMessage:
    """Parse one text message. Raises StreamSynthError for what is wrong with it."""
    return _decoder.decode(data, limits)


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    event: dict[str, Any]
    event_id: str | None = None
    transition_chunks: Annotated[int, msgspec.Meta(ge=0, le=MAX_TRANSITION_CHUNKS)] | None = None
    mode: Mode = Mode.REPLACE
    kv: Kv | None = None


def parse_interaction(fields: Mapping[str, Any], drawn_id: str) -> Interaction:
    """The checked interaction; `drawn_id` is its id if it brings none. Raises StreamSynthError naming the field."""
    try:
        asked = msgspec.convert(fields, _Asked, strict=True)
    except msgspec.ValidationError as error:
        raise validation_error(error, _Asked, lambda: fields) from None
    return Interaction(
        drawn_id if asked.event_id is None else _check_event_id(asked.event_id),
        check_event(asked.event),
        asked.transition_chunks,
        asked.mode,
        asked.kv,
    )


def known_event_id(fields: Mapping[str, Any]) -> str | None:
    """The id that a refusal of these fields can repeat."""
    given = fields.get("event_id")
    return given if isinstance(given, str) and 0 < len(given) <= MAX_EVENT_ID_CHARACTERS else None


def _check_event_id(event_id: str) -> str:
    if not 0 < len(event_id) <= MAX_EVENT_ID_CHARACTERS:
        raise invalid_value("event_id", event_id, f"text of 1 to {MAX_EVENT_ID_CHARACTERS} characters")
    return event_id
