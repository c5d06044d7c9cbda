"""The connections that a listening socket accepts: a limit to them, typed refusals, quiet logs."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.binding import BACKLOG
from streamsynth.realtime.http_errors import error_response
from streamsynth.realtime.keys import ROUTE
from streamsynth.realtime.limits import Limits

_FULL_BODY = (
    b'{"error":{"message":"too many connections are open","type":"overloaded_error","param":null,"code":"overloaded"}}'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)


async def accept_connections(
    server: web.Server, listener: socket.socket, limits: Limits, tls: ssl.SSLContext | None
) -> asyncio.Server:
    """Start accepting. The caller closes what is returned, and before that cleans up `server`."""
    loop = asyncio.get_running_loop()

    def connect() -> asyncio.Protocol:
        return Connection(server, limits)

    return await loop.create_server(connect, sock=listener, ssl=tls, backlog=BACKLOG)


class Connection(web.RequestHandler):
    """Refused when there are too many; answers malformed requests as every other error, and fills no log with them."""

    __slots__ = ("_limit", "_server")

    def __init__(self, server: web.Server, limits: Limits) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_s,
            access_log_class=AccessLog,
            access_log=_access_log,
        )
        self._server = server
        self._limit = limits.connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._server.connections) < self._limit:
            super().connection_made(transport)
            return
        self.close()  # nothing that it sends is looked at
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(_FULL)
        transport.close()

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        # A broken body has been refused already; aiohttp meets it again when it reads on to the next request.
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionResetError("the answer had begun")
        if status == 400:
            error = StreamSynthError(ErrorCode.INVALID_VALUE, "this is not a well-formed HTTP request")
        else:
            self.log_exception("a connection failed", exc_info=exc)
            error = StreamSynthError(ErrorCode.INTERNAL_ERROR, "the server failed; its log says why")
        response = error_response(error)
        response.force_close()
        return response


_access_log = logging.getLogger("streamsynth.access")


class AccessLog(AbstractAccessLogger):
    """Route, status, bytes, time. No query and no unknown path: either may be a user's text."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        route = request.get(ROUTE, "(no route)")
        self.logger.info(
            "%s %s %d %d bytes %.3f s", request.method[:16], route, response.status, response.body_length, time
        )

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)
