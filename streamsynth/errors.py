"""One error type for every surface, and one table from its code to HTTP and the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    """Stable machine-readable codes: the `code` of every error that leaves the server."""

    # The client asked for something that cannot be.
    INVALID_JSON = "invalid_json"
    INVALID_VALUE = "invalid_value"
    MISSING_FIELD = "missing_field"
    UNKNOWN_FIELD = "unknown_field"
    UNSUPPORTED_FIELD = "unsupported_field"
    UNSUPPORTED_LANGUAGE = "unsupported_language"
    UNSUPPORTED_REFERENCE = "unsupported_reference"
    TEXT_TOO_LONG = "text_too_long"
    MESSAGE_TOO_LARGE = "message_too_large"
    VOICE_NOT_FOUND = "voice_not_found"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    NOT_READY = "not_ready"
    RANGE_NOT_SATISFIABLE = "range_not_satisfiable"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    # The client spoke out of turn.
    CONFIG_REQUIRED = "config_required"
    CONFIG_WHILE_OPEN = "config_while_open"
    UNKNOWN_MESSAGE = "unknown_message"
    BINARY_NOT_ALLOWED = "binary_not_allowed"
    CANCEL_NOT_ACTIVE = "cancel_not_active"
    CANCELLED = "cancelled"
    ALREADY_STARTED = "already_started"
    INTERACTION_NOT_ACTIVE = "interaction_not_active"
    INTERACTION_QUEUE_FULL = "interaction_queue_full"
    INTERACTION_FAILED = "interaction_failed"
    EVENT_ID_CONFLICT = "event_id_conflict"
    # The client may not, or not now.
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    IDLE_TIMEOUT = "idle_timeout"
    NO_FIRST_MESSAGE = "no_first_message"
    STALLED_READER = "stalled_reader"
    # The client could not reach the server, or lost it; raised by clients only.
    CONNECTION_FAILED = "connection_failed"
    # The server failed.
    WORKER_DIED = "worker_died"
    STALLED_ENGINE = "stalled_engine"
    ENGINE_FAILED = "engine_failed"
    START_FAILED = "start_failed"
    INTERRUPTED = "interrupted"
    ENCODER_FAILED = "encoder_failed"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Rendering:
    """How one code looks from outside: HTTP status, OpenAI error type, and close code where it ends a socket."""

    http_status: int
    openai_type: str = "invalid_request_error"
    close_code: int = 1008


_SERVER = "server_error"
_OVERLOAD = "overloaded_error"

TABLE: Mapping[ErrorCode, Rendering] = {
    **{
        code: Rendering(400)
        for code in (
            ErrorCode.INVALID_JSON,
            ErrorCode.INVALID_VALUE,
            ErrorCode.MISSING_FIELD,
            ErrorCode.UNKNOWN_FIELD,
            ErrorCode.UNSUPPORTED_FIELD,
            ErrorCode.UNSUPPORTED_LANGUAGE,
            ErrorCode.UNSUPPORTED_REFERENCE,
            ErrorCode.TEXT_TOO_LONG,
            ErrorCode.VOICE_NOT_FOUND,
            ErrorCode.CONFIG_REQUIRED,
            ErrorCode.CONFIG_WHILE_OPEN,
            ErrorCode.UNKNOWN_MESSAGE,
            ErrorCode.CANCEL_NOT_ACTIVE,
            ErrorCode.ALREADY_STARTED,
            ErrorCode.INTERACTION_NOT_ACTIVE,
            ErrorCode.INTERACTION_QUEUE_FULL,
            ErrorCode.INTERACTION_FAILED,
            ErrorCode.EVENT_ID_CONFLICT,
        )
    },
    ErrorCode.BINARY_NOT_ALLOWED: Rendering(400, close_code=1003),
    ErrorCode.MESSAGE_TOO_LARGE: Rendering(413, close_code=1009),
    ErrorCode.MODEL_NOT_FOUND: Rendering(404, "not_found_error"),
    ErrorCode.NOT_FOUND: Rendering(404, "not_found_error"),
    ErrorCode.NOT_READY: Rendering(409),
    ErrorCode.RANGE_NOT_SATISFIABLE: Rendering(416),
    ErrorCode.METHOD_NOT_ALLOWED: Rendering(405),
    ErrorCode.CANCELLED: Rendering(499, close_code=1000),
    ErrorCode.UNAUTHORIZED: Rendering(401, "authentication_error"),
    ErrorCode.FORBIDDEN: Rendering(403, "permission_error"),
    ErrorCode.OVERLOADED: Rendering(429, _OVERLOAD, 1013),
    ErrorCode.SHUTTING_DOWN: Rendering(503, _OVERLOAD, 1001),
    ErrorCode.IDLE_TIMEOUT: Rendering(408, close_code=4000),
    ErrorCode.NO_FIRST_MESSAGE: Rendering(408, close_code=4001),
    ErrorCode.STALLED_READER: Rendering(408, close_code=4002),
    ErrorCode.CONNECTION_FAILED: Rendering(502, _SERVER, 1011),
    ErrorCode.WORKER_DIED: Rendering(503, _SERVER, 1011),
    ErrorCode.STALLED_ENGINE: Rendering(503, _SERVER, 1011),
    ErrorCode.ENGINE_FAILED: Rendering(500, _SERVER, 1011),
    ErrorCode.START_FAILED: Rendering(503, _SERVER, 1011),
    ErrorCode.INTERRUPTED: Rendering(503, _SERVER, 1011),
    ErrorCode.ENCODER_FAILED: Rendering(500, _SERVER, 1011),
    ErrorCode.INTERNAL_ERROR: Rendering(500, _SERVER, 1011),
}


class StreamSynthError(Exception):
    """What went wrong, in a form that every surface can show.

    `message` names the field and the limit where there is one; `param` is that field; `retry_after_ms` is set when
    trying again later can work. `str(error)` is the message.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, param: str | None = None, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms

    @property
    def rendering(self) -> Rendering:
        return TABLE[self.code]

    @property
    def blames_request(self) -> bool:
        """Whether it says that what was asked for cannot be: in vain to ask again, but not for another thing."""
        return self.rendering.http_status == 400

    def to_wire(self) -> dict[str, Any]:
        """The fields that are set, as a plain map (worker frames, socket errors)."""
        fields = {"param": self.param, "retry_after_ms": self.retry_after_ms}
        return {
            "code": self.code.value,
            "message": self.message,
            **{name: value for name, value in fields.items() if value is not None},
        }

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> StreamSynthError:
        return cls(
            ErrorCode(fields["code"]),
            fields["message"],
            param=fields.get("param"),
            retry_after_ms=fields.get("retry_after_ms"),
        )


def unknown_field(name: str, where: str = "") -> StreamSynthError:
    """A field that nobody knows; of its name at most 60 characters are shown, and `where` it was found."""
    shown = name if len(name) <= 60 else name[:57] + "..."
    return StreamSynthError(ErrorCode.UNKNOWN_FIELD, f"there is no field {shown!r}{where}", param=shown)


def invalid_value(param: str, value: object, limit: str) -> StreamSynthError:
    """A refused field: the message shows the value (at most 60 characters of it) and the limit."""
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return StreamSynthError(ErrorCode.INVALID_VALUE, f"{param} is {shown}; it must be {limit}", param=param)
