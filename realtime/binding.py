"""The listening socket, and the files of its TLS. Imports nothing heavy: a port in use is known at once."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import KIB

BACKLOG = 1024
_SEND_BUFFER_BYTES = 64 * KIB
_UNSENT_BYTES = 16 * KIB
_SEGMENT_BYTES = 1440


def open_listener(host: str, port: int) -> socket.socket:
    """Bind and listen; connections wait until somebody accepts. Raises `start_failed` naming the address.

    Accepted sockets inherit the sizes. Without those of the buffers a client that reads nothing absorbs a minute of
    speech. A full receiver makes room for whole segments only: at loopback's own size of 64 KiB, one that reads 1 kB/s
    seems to read nothing for a minute; at that of any network, for 7 s.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda info: info[0] is not socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> StreamSynthError:
    hint = "; --port takes another, 0 a free one" if error.errno == errno.EADDRINUSE else ""
    message = f"cannot listen on {host}:{port}: {error.strerror or error}{hint}"
    return StreamSynthError(ErrorCode.START_FAILED, message)


def open_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The server's TLS, or None without files. Blocks for the reads; raises `start_failed` naming the files."""
    if cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise StreamSynthError(ErrorCode.START_FAILED, f"cannot use {cert} and {key} for TLS: {error}") from error
    return context
