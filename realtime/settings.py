"""What an operator decides about the server, checked before anything is bound."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.realtime.limits import Limits

_KEY = re.compile(r"[A-Za-z0-9_-]{1,512}")
_ORIGIN = re.compile(r"https?://[^/?#\s@]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Where the server listens and whom it lets in. `port` 0 takes a free one. Refuses what cannot be.

    `data` is the folder of the videos that it keeps. None: one that is this port's, across restarts; of a free port,
    one that is removed at the end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: Limits = field(default_factory=Limits)
    data: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise invalid_value("port", self.port, "within 0..65535")
        for position, key in enumerate(self.api_keys, 1):
            if not _KEY.fullmatch(key):
                message = f"API key {position} is not base64url without padding (letters, digits, - and _)"
                raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="api_keys")
        for origin in self.cors_origins:
            self._check_origin(origin)
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise StreamSynthError(
                ErrorCode.INVALID_VALUE, f"TLS needs both files: {missing} is missing", param=missing
            )
        if not self.api_keys and not is_loopback(self.host):
            message = f"host is {self.host!r}; without API keys the server binds to loopback only (127.0.0.1, ::1)"
            raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="host")

    def _check_origin(self, origin: str) -> None:
        if origin == "*" and not self.api_keys:
            raise invalid_value("cors_origin", origin, "a named origin when there are no API keys")
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise invalid_value("cors_origin", origin, "a scheme and a host, such as https://example.org, or *")

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"


def is_loopback(host: str) -> bool:
    """Whether a host name, without its port, can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
