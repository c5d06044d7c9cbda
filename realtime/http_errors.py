"""Errors as HTTP answers: OpenAI's shape, the status of the one table, and when to come back."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from aiohttp import web

from streamsynth.errors import ErrorCode, StreamSynthError


def error_object(error: StreamSynthError) -> dict[str, Any]:
    """OpenAI's error: what stands under "error" in an answer's body and in `speech.audio.error`."""
    return {
        "message": error.message,
        "type": error.rendering.openai_type,
        "param": error.param,
        "code": error.code.value,
    }


def error_response(error: StreamSynthError) -> web.Response:
    response = _response(error.rendering.http_status, error_object(error))
    if error.retry_after_ms is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_ms / 1000)))
    if error.code is ErrorCode.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def from_aiohttp(error: web.HTTPException) -> web.Response:
    """The same shape for what aiohttp refuses by itself: unknown paths, wrong methods, bad expectations."""
    match error:
        case web.HTTPNotFound():
            return error_response(StreamSynthError(ErrorCode.NOT_FOUND, "there is nothing at this path"))
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            refusal = StreamSynthError(ErrorCode.METHOD_NOT_ALLOWED, f"this path takes {allowed}")
            response = error_response(refusal)
            response.headers["Allow"] = allowed
            return response
        case web.HTTPBadRequest():
            return error_response(StreamSynthError(ErrorCode.INVALID_VALUE, "this is not a WebSocket handshake"))
        case _:
            phrase = HTTPStatus(error.status).phrase
            kind = "server_error" if error.status >= 500 else "invalid_request_error"
            code = phrase.lower().replace(" ", "_")
            return _response(error.status, {"message": phrase, "type": kind, "param": None, "code": code})


def _response(status: int, error: dict[str, Any]) -> web.Response:
    # An error may quote what the client sent; ASCII carries whatever that was.
    return web.Response(status=status, text=json.dumps({"error": error}), content_type="application/json")
