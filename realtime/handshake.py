"""WebSocket handshakes: which subprotocol is selected, and how a refused one is told."""

from __future__ import annotations

import asyncio

from aiohttp import web

from streamsynth.errors import StreamSynthError
from streamsynth.realtime.auth import STREAMSYNTH_PROTOCOL, offered_protocols
from streamsynth.realtime.keys import LIMITS, REQUEST_ID
from streamsynth.realtime.speech_messages import Error, encode_message


def is_websocket(request: web.BaseRequest) -> bool:
    """Whether the client asks for an upgrade."""
    connection = request.headers.get("Connection", "").lower()
    return request.headers.get("Upgrade", "").lower() == "websocket" and "upgrade" in connection


def open_socket(max_message_bytes: int) -> web.WebSocketResponse:
    """A socket with nothing automatic: pings, pongs and closing are ours. Selects `streamsynth`, never echoes a key."""
    return web.WebSocketResponse(
        protocols=(STREAMSYNTH_PROTOCOL,),
        compress=False,
        heartbeat=None,
        autoping=False,
        autoclose=False,
        max_msg_size=max_message_bytes,
    )


def can_be_told(request: web.BaseRequest) -> bool:
    """Whether a refusal can be an `error` on the socket: a browser shows nothing of a refused handshake."""
    return is_websocket(request) and STREAMSYNTH_PROTOCOL in offered_protocols(request.headers)


async def refuse_socket(request: web.Request, error: StreamSynthError) -> web.WebSocketResponse:
    """Upgrade, say why in one `error`, and close; takes at most `close_wait_s`."""
    limits = request.app[LIMITS]
    socket = open_socket(limits.message_bytes)
    await socket.prepare(request)
    message = Error.of(error, fatal=True, request_id=request[REQUEST_ID])
    try:
        async with asyncio.timeout(limits.close_wait_s):
            await socket.send_str(encode_message(message).decode())
            await socket.close(code=error.rendering.close_code, message=error.code.value.encode())
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return socket
