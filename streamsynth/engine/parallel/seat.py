"""Where a process sits among the ranks of its stage: rank 0 tells the others what to do, and ends with any of them.

Commands go over sockets that the launcher made: whoever waits for one may wait for ever, and hears at once that its
peer has ended. What ranks compute and agree on together goes through torch.distributed (`group.py`); `store` is where
they meet for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import NoReturn, Protocol

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_RECEIVE_BYTES = 1 << 20


class Follower(Protocol):
    """What an engine is on every rank but the first."""

    def follow(self) -> None:
        """Do as rank 0 says, until it says that it is over."""


class Seat:
    """`store` is the path of a file that all ranks have open, empty when they start."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        self.rank = rank
        self.size = size
        self.store = store


class LeadingSeat(Seat):
    """Rank 0's. `peers` are its sockets to the others, in their order; it owns them."""

    def __init__(self, store: str, peers: Sequence[socket.socket]) -> None:
        super().__init__(0, 1 + len(peers), store)
        self._peers = tuple(peers)
        self._leaving = False

    def watch(self) -> None:
        """From now on this process ends when another rank does: there is no going on without it."""
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def tell(self, command: bytes) -> None:
        """Blocks while a rank has not read what it was told before."""
        for peer in self._peers:
            try:
                peer.sendall(_LENGTH.pack(len(command)) + command)
            except OSError:
                self.lose("a rank does not listen any more")

    def leave(self, farewell: bytes) -> None:
        """Tell the others that it is over: that they end is as it should be."""
        self._leaving = True
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.sendall(_LENGTH.pack(len(farewell)) + farewell)

    def lose(self, reason: str) -> NoReturn:
        """End this process at once: a collective that waits for a lost rank cannot be interrupted. The server sees the
        socket end, fails the requests, ends the other ranks and starts all anew."""
        logger.error("%s: all ranks of the stage end", reason)
        os._exit(1)

    def _watch(self) -> None:
        poll = select.poll()
        ranks = {peer.fileno(): rank for rank, peer in enumerate(self._peers, 1)}
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN)
        # Followers send nothing: whatever there is to read is an end.
        ended = poll.poll()
        if not self._leaving:
            self.lose(f"rank {ranks[ended[0][0]]} has ended")


class FollowingSeat(Seat):
    """Of any other rank, with its socket to rank 0; it owns that."""

    def __init__(self, rank: int, size: int, store: str, leader: socket.socket) -> None:
        super().__init__(rank, size, store)
        self._leader = leader

    def hear(self) -> bytes:
        """The next command. Ends the process when rank 0 is gone."""
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        return self._receive(length)

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            data = self._leader.recv(min(count - len(received), _RECEIVE_BYTES))
            if not data:
                os._exit(0)
            received += data
        return bytes(received)

    def wait_for_end(self, timeout_s: float) -> None:
        """Return when rank 0 is gone, or after the time."""
        poll = select.poll()
        poll.register(self._leader.fileno(), 0)
        poll.poll(1000 * timeout_s)
