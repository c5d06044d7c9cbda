"""Connecting to a StreamSynth server."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from streamsynth.errors import invalid_value
from streamsynth.realtime.settings import is_loopback
from streamsynth.remote_errors import connection_failed, refused_handshake

SPEECH_ROUTE = "/v1/audio/speech/stream"
VIDEO_ROUTE = "/v1/realtime/video"
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
KEEP_ALIVE_S = 20.0


def socket_url(url: str, route: str = SPEECH_ROUTE) -> str:
    """The route of the server at an http(s) or ws(s) URL; raises INVALID_VALUE."""
    return _base(url, {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}) + route


def http_url(url: str) -> str:
    """The server at an http(s) or ws(s) URL, to which a route's path is added; raises INVALID_VALUE."""
    return _base(url, {"http": "http", "https": "https", "ws": "http", "wss": "https"})


def _base(url: str, schemes: Mapping[str, str]) -> str:
    try:
        parts = urlsplit(url)
        scheme = schemes.get(parts.scheme)
        reachable = scheme is not None and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number or too large, a bracket that is not closed
        reachable = False
    if not reachable:
        raise invalid_value("url", url, "the address of a server, such as http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{scheme}://{parts.netloc}{path}"


async def connect_socket(url: str, api_key: str | None) -> ClientConnection:
    """`url` is a route's own, as `socket_url` gives it. Raises StreamSynthError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else None
    local = is_loopback(urlsplit(url).hostname or "")
    try:
        return await connect(
            url,
            additional_headers=headers,
            compression=None,
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=None,  # pongs are not read while we pause: who reads knows when
            proxy=None if local else True,
        )
    except InvalidStatus as refusal:
        raise refused_handshake(refusal) from None
    except (OSError, InvalidHandshake, InvalidURI) as error:
        raise connection_failed(f"no connection to {url}: {error}") from error
