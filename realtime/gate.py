"""What every request passes: its id, the source and key checks, CORS, and the rendering of whatever goes wrong."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.handshake import can_be_told, is_websocket, refuse_socket
from streamsynth.realtime.http_errors import error_response, from_aiohttp
from streamsynth.realtime.http_writer import break_off
from streamsynth.realtime.keys import AUTH, CALLER, METRICS, OPEN_PATHS, REQUEST_ID, ROUTE

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

EXPOSED_HEADERS = "X-Request-Id, X-Sample-Rate, X-Channels, X-Ignored-Fields, X-Seed, Retry-After"
_ASKED_HEADERS = re.compile(r"[A-Za-z0-9-]+(, ?[A-Za-z0-9-]+){0,50}")


@web.middleware
async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
    request[REQUEST_ID] = f"req-{secrets.token_hex(8)}"
    if (resource := request.match_info.route.resource) is not None:
        request[ROUTE] = resource.canonical
    try:
        return await _admit(request, handler)
    except StreamSynthError as error:
        return await _refuse(request, error)
    except web.HTTPException as error:
        return from_aiohttp(error)
    except ConnectionError:
        raise  # The client left while it was written to; the connection ends with it.
    except Exception:
        logger.exception("request %s failed", request[REQUEST_ID])
        return await _refuse(request, StreamSynthError(ErrorCode.INTERNAL_ERROR, "the server failed; its log says why"))


async def expect(request: web.Request) -> web.StreamResponse | None:
    """aiohttp asks this before the middlewares, for a request with an Expect header."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return from_aiohttp(web.HTTPExpectationFailed())
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer itself has not begun
    return None


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal before every answer's headers leave."""
    if REQUEST_ID in request:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
    response.headers["Server"] = "streamsynth"
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    origin = request.headers.get("Origin")
    if origin is not None and request.app[AUTH].allows_origin(origin):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
        response.headers["Vary"] = "Origin"


async def _admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    auth = request.app[AUTH]
    auth.check_source(request.headers)
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        return _preflight(request)
    if request.path not in request.app[OPEN_PATHS]:
        request[CALLER] = auth.identify(request.headers, websocket=is_websocket(request))
    return await handler(request)


def _preflight(request: web.Request) -> web.Response:
    if not request.app[AUTH].allows_origin(request.headers.get("Origin", "")):
        raise StreamSynthError(ErrorCode.FORBIDDEN, "pages of this origin may not call; see --cors-origin")
    # SDKs in browsers send headers of their own. None of them gives rights here: those come with the key alone.
    asked = request.headers.get("Access-Control-Request-Headers", "")
    allowed = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": asked if _ASKED_HEADERS.fullmatch(asked) else "Authorization, Content-Type",
        "Access-Control-Max-Age": "600",
    }
    return web.Response(status=204, headers=allowed)


async def _refuse(request: web.Request, error: StreamSynthError) -> web.StreamResponse:
    request.app[METRICS].refused(error.code)
    if request.writer.output_size > 0:
        logger.warning("request %s ended after its first byte: %s", request[REQUEST_ID], error.code.value)
        break_off(request)
        raise ConnectionResetError(error.code.value)
    if can_be_told(request):
        return await refuse_socket(request, error)
    return error_response(error)
