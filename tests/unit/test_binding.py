"""The listening socket: what accepted sockets inherit from it, and what cannot be bound."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.binding import open_listener, open_tls


def test_accepted_sockets_have_small_buffers_and_segments() -> None:
    """Without them a client that reads nothing absorbs more than a minute of speech."""
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            # Linux books twice the size that was asked for.
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 64 * 1024
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 16 * 1024
            # A receiver's window opens by segments, and loopback's own would hide a slow reader for a minute.
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1440


def test_a_port_in_use_and_a_host_that_is_not_ours_are_named() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "203.0.113.1"):
            with pytest.raises(StreamSynthError) as caught:
                open_listener(host, port)
            assert caught.value.code is ErrorCode.START_FAILED
            assert f"{host}:{port}" in caught.value.message


def test_localhost_is_bound_where_most_clients_look() -> None:
    with open_listener("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert open_tls(None, None) is None
    with pytest.raises(StreamSynthError, match=r"cert\.pem") as caught:
        open_tls(tmp_path / "cert.pem", tmp_path / "key.pem")
    assert caught.value.code is ErrorCode.START_FAILED
