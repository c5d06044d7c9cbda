"""WebSocket handshakes that are refused: a browser shows nothing of an HTTP status, so some are told on the socket."""

from __future__ import annotations

import asyncio

from aiohttp import WSMsgType, web

from streamsynth.errors import StreamSynthError
from streamsynth.realtime.auth import STREAMSYNTH_PROTOCOL, offered_protocols
from streamsynth.realtime.frame_queue import text_frame
from streamsynth.realtime.keys import LIMITS, REQUEST_ID
from streamsynth.realtime.messages import Error
from streamsynth.realtime.ws_transport import QuietWebSocket, WebSocketTransport

_ENDED = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)


def is_websocket(request: web.BaseRequest) -> bool:
    """Whether the client asks for an upgrade."""
    connection = request.headers.get("Connection", "").lower()
    return request.headers.get("Upgrade", "").lower() == "websocket" and "upgrade" in connection


def can_be_told(request: web.BaseRequest) -> bool:
    """Whether the client offers our subprotocol in a whole handshake, and so understands an `error` after it."""
    offered = STREAMSYNTH_PROTOCOL in offered_protocols(request.headers)
    return offered and is_websocket(request) and QuietWebSocket(0).can_prepare(request).ok


async def refuse_socket(request: web.Request, error: StreamSynthError) -> web.StreamResponse:
    """Upgrade, say why in one `error`, and close; takes at most `close_wait_s`, whatever the client does."""
    limits = request.app[LIMITS]
    websocket = QuietWebSocket(limits.message_bytes)
    transport = await WebSocketTransport.open(websocket, request)
    transport.write(text_frame(Error.of(error, fatal=True, request_id=request[REQUEST_ID])))
    transport.write_close(error.rendering.close_code, error.code.value)
    try:
        async with asyncio.timeout(limits.close_wait_s):
            while (await websocket.receive()).type not in _ENDED:
                continue
    except TimeoutError:
        transport.abort()
    return websocket
