"""The body of a request: read within its limits, and as a JSON object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import Limits

T = TypeVar("T")


async def read_body(request: web.BaseRequest, limits: Limits) -> bytes:
    """The whole body. Raises `message_too_large`, `invalid_value` if broken, `idle_timeout` if it does not come."""
    return await read_within(request, limits, request.read)


async def read_within(request: web.BaseRequest, limits: Limits, read: Callable[[], Awaitable[T]]) -> T:
    """What `read` makes of the body; raises as `read_body`."""
    too_large = StreamSynthError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the body has more than {limits.body_bytes} bytes, the limit"
    )
    if (request.content_length or 0) > limits.body_bytes:
        raise too_large
    try:
        async with asyncio.timeout(limits.body_s):
            return await read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_s:g} s"
        raise StreamSynthError(ErrorCode.IDLE_TIMEOUT, message) from None
    except web.RequestPayloadError:
        raise StreamSynthError(ErrorCode.INVALID_VALUE, "the body's encoding is broken") from None


def decode_object(body: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StreamSynthError(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise StreamSynthError(ErrorCode.INVALID_JSON, "the body must be a JSON object")
    return fields
