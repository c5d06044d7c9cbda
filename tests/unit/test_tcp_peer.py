"""What the kernel says of a peer that does not read, and of one that reads on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamsynth.realtime.binding import open_listener
from streamsynth.realtime.tcp_peer import TcpPeer

WAIT_S = 10


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """Our end, and the peer's bare socket."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            accepted.set_result(transport)

    with open_listener("127.0.0.1", 0) as listener, socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        peer.setblocking(False)
        server = await loop.create_server(Accepting, sock=listener)
        async with server, asyncio.timeout(WAIT_S):
            await loop.sock_connect(peer, listener.getsockname())
            transport = await accepted
            try:
                yield transport, peer
            finally:
                transport.abort()


async def filled(transport: asyncio.Transport) -> TcpPeer:
    """Return when the peer has no room for more, and more waits for it."""
    peer = TcpPeer(transport)
    transport.write(bytes(1 << 20))
    taken = -1
    while taken != (taken := peer.taken_bytes()):
        await asyncio.sleep(0.05)
    peer.is_reading()
    return peer


async def test_a_peer_that_reads_nothing_of_what_waits_is_not_reading() -> None:
    async with connected() as (transport, _):
        peer = await filled(transport)
        taken = peer.taken_bytes()
        assert not peer.is_reading()
        assert peer.taken_bytes() == taken


async def test_a_peer_that_reads_is_seen_to_before_the_transport_can_write_more() -> None:
    async with connected() as (transport, reader):
        peer = await filled(transport)
        taken, buffered = peer.taken_bytes(), transport.get_write_buffer_size()
        while not peer.is_reading():
            await asyncio.get_running_loop().sock_recv(reader, 1024)
        assert peer.taken_bytes() > taken
        assert transport.get_write_buffer_size() == buffered


async def test_what_a_peer_takes_without_having_to_read_proves_nothing() -> None:
    """A ping goes into the kernel of a client that hangs."""
    async with connected() as (transport, _):
        peer = TcpPeer(transport)
        assert not peer.is_reading()
        taken = peer.taken_bytes()
        transport.write(b"ping")
        while peer.taken_bytes() == taken:
            await asyncio.sleep(0.01)
        assert not peer.is_reading()


async def test_a_transport_without_a_socket_is_known_by_its_buffer() -> None:
    async with connected() as (transport, _):
        await filled(transport)
        buffered = transport.get_write_buffer_size()
        transport.get_extra_info = lambda name, default=None: default  # type: ignore[method-assign]
        peer = TcpPeer(transport)
        assert peer.silent_s() is None
        assert peer.taken_bytes() == -buffered
