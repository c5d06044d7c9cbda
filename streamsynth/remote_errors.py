"""What a server, or the way to it, did wrong, as the error that the same fault has in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from websockets.exceptions import ConnectionClosed, InvalidStatus

from streamsynth.errors import ErrorCode, StreamSynthError

_BY_STATUS: Mapping[int, ErrorCode] = {
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    429: ErrorCode.OVERLOADED,
    503: ErrorCode.SHUTTING_DOWN,
}
_BY_CLOSE_CODE: Mapping[int, ErrorCode] = {
    1001: ErrorCode.SHUTTING_DOWN,
    1009: ErrorCode.MESSAGE_TOO_LARGE,
    1011: ErrorCode.INTERNAL_ERROR,
    1013: ErrorCode.OVERLOADED,
    4000: ErrorCode.IDLE_TIMEOUT,
    4001: ErrorCode.NO_FIRST_MESSAGE,
    4002: ErrorCode.STALLED_READER,
}

_CODES = frozenset(code.value for code in ErrorCode)


def known_code(code: str, otherwise: ErrorCode) -> ErrorCode:
    """The code of that name, which a newer server may have and this client not."""
    return ErrorCode(code) if code in _CODES else otherwise


def connection_failed(what: str) -> StreamSynthError:
    return StreamSynthError(ErrorCode.CONNECTION_FAILED, what)


def refused_handshake(refusal: InvalidStatus) -> StreamSynthError:
    """From the HTTP answer to a handshake."""
    response = refusal.response
    return refused_request(response.status_code, response.headers.get("Retry-After"), bytes(response.body or b""))


def refused_request(status: int, retry_after: str | None, body: bytes) -> StreamSynthError:
    """From an HTTP answer: the server's own words if it is one of ours, else its status."""
    code = _BY_STATUS.get(status, ErrorCode.CONNECTION_FAILED)
    try:
        error = json.loads(body)["error"]
        code, message, param = known_code(str(error["code"]), code), str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, param = f"the server refused the connection: HTTP {status} {_phrase(status)}".rstrip(), None
    return StreamSynthError(code, message, param=param, retry_after_ms=_retry_after_ms(retry_after))


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in {known.value for known in HTTPStatus} else ""


def closed_connection(closed: ConnectionClosed) -> StreamSynthError:
    """From the close frame, whose reason a server of ours starts with the error's code."""
    frame = closed.rcvd
    if frame is None:
        return connection_failed("the connection to the server was lost")
    said, colon, message = frame.reason.partition(": ")
    code = _BY_CLOSE_CODE.get(frame.code, ErrorCode.CONNECTION_FAILED)
    if colon and said in _CODES:
        return StreamSynthError(ErrorCode(said), message)
    return StreamSynthError(code, f"the server closed the connection: {frame.code} {frame.reason}".rstrip())


def _retry_after_ms(value: str | None) -> int | None:
    return int(value) * 1000 if value is not None and value.isdecimal() else None
