"""What the kernel knows of a connection's peer: when it was heard, and whether it takes what is sent to it."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios

_INFORMATION = struct.Struct("=52xI64xQ")  # tcpi_last_data_recv (milliseconds) and tcpi_bytes_acked of linux/tcp.h
_COUNT = struct.Struct("=i")


class TcpPeer:
    """The peer behind a transport. What is not TCP, or is closed, is known by the transport's own buffer alone."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._taken = 0
        self._was_behind = False

    def silent_s(self) -> float | None:
        """How long ago the last bytes came, also those of a message that is not whole yet. None: not known."""
        information = self._information()
        return information[0] / 1000 if information else None

    def taken_bytes(self) -> int:
        """Grows, from one call to the next with nothing written between them, when the peer has taken something.

        The transport's own buffer shows it late: the kernel asks for more only when a third of its buffer is free.
        """
        information = self._information()
        return information[1] if information else -self._transport.get_write_buffer_size()

    def is_reading(self) -> bool:
        """Whether the peer has taken something since the last call, of more than it had room for.

        Such a peer may be alive and unable to show it: its answer to a ping waits until it has read what lies before.
        """
        taken, was_behind = self.taken_bytes(), self._was_behind
        progress = taken > self._taken
        self._taken, self._was_behind = taken, self._unacknowledged_bytes() > 0
        return progress and was_behind

    def _information(self) -> tuple[int, int] | None:
        connection = self._connection()
        if connection is None:
            return None
        try:
            information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFORMATION.size)
        except OSError:
            return None
        silent_ms, acked_bytes = _INFORMATION.unpack(information)
        return silent_ms, acked_bytes

    def _unacknowledged_bytes(self) -> int:
        connection = self._connection()
        try:
            held = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size)) if connection else b""
        except OSError:
            held = b""
        count: int = _COUNT.unpack(held)[0] if held else 0
        return count + self._transport.get_write_buffer_size()

    def _connection(self) -> socket.socket | None:
        connection: socket.socket | None = self._transport.get_extra_info("socket")
        if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        return connection
