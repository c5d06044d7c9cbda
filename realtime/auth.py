"""Who is calling: API keys, and for servers without keys the refusal of every page and name that is not local."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from multidict import CIMultiDict, CIMultiDictProxy

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.settings import ServerSettings, is_loopback

Headers = CIMultiDict[str] | CIMultiDictProxy[str]

STREAMSYNTH_PROTOCOL = "streamsynth"
# Browsers cannot set headers on a WebSocket, so the key travels beside the subprotocol that the server then selects.
_KEY_PROTOCOLS = {STREAMSYNTH_PROTOCOL: "bearer.", "realtime": "openai-insecure-api-key."}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request counts for. `name` is the position of the key in the configuration, never the key itself; `owner`
    is what says on disk whose something is, the same after a restart with the keys in another order.
    """

    name: str
    owner: str = field(default="local", compare=False)


LOCAL = Caller("local")


class Auth:
    """Checks a request's headers. Holds the keys; none of its messages shows one."""

    def __init__(self, settings: ServerSettings) -> None:
        self._keys = tuple(
            (key.encode(), Caller(f"key-{n}", _digest(key))) for n, key in enumerate(settings.api_keys, 1)
        )
        self._origins = frozenset(settings.cors_origins)
        self._names = frozenset({settings.host.lower()})

    @property
    def keyed(self) -> bool:
        return bool(self._keys)

    def check_source(self, headers: Headers) -> None:
        """Refuse foreign Host and Origin headers when there are no keys: DNS rebinding and other people's pages."""
        if self._keys:
            return
        host = headers.get("Host", "")
        name = _host_name(host)
        if not (is_loopback(name) or name in self._names):
            raise StreamSynthError(ErrorCode.FORBIDDEN, "without API keys this server answers to loopback names only")
        origin = headers.get("Origin")
        if origin is not None and not (self.allows_origin(origin) or _same_origin(origin, host)):
            message = "without API keys this server answers its own page and the origins of --cors-origin only"
            raise StreamSynthError(ErrorCode.FORBIDDEN, message)

    def allows_origin(self, origin: str) -> bool:
        """Whether pages of this origin may read answers."""
        return origin in self._origins or ("*" in self._origins and origin != "null")

    def identify(self, headers: Headers, *, websocket: bool = False) -> Caller:
        """The caller that the key in the headers stands for; raises `unauthorized`."""
        if not self._keys:
            return LOCAL
        key = _bearer(headers)
        if key is None and websocket:
            key = _protocol_key(offered_protocols(headers))
        if key is None:
            raise StreamSynthError(ErrorCode.UNAUTHORIZED, "an API key is required: Authorization: Bearer KEY")
        given = key.encode(errors="replace")
        matches = [caller for known, caller in self._keys if hmac.compare_digest(known, given)]
        if not matches:
            raise StreamSynthError(ErrorCode.UNAUTHORIZED, "this API key is not known here")
        return matches[0]


def offered_protocols(headers: Headers) -> list[str]:
    """The WebSocket subprotocols that a client offers, keys among them."""
    lines = headers.getall("Sec-WebSocket-Protocol", [])
    return [name.strip() for line in lines for name in line.split(",") if name.strip()]


def _digest(key: str) -> str:
    return hashlib.sha256(b"owner of videos: " + key.encode()).hexdigest()[:32]


def _bearer(headers: Headers) -> str | None:
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def _protocol_key(offered: list[str]) -> str | None:
    for protocol, prefix in _KEY_PROTOCOLS.items():
        if protocol in offered:
            for name in offered:
                if name.startswith(prefix):
                    return name.removeprefix(prefix)
    return None


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _same_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
