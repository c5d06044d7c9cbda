"""Where a process sits among the ranks of its stage: rank 0 tells the others what to do, and ends with any of them.

Commands, and what ranks answer, go over sockets that the launcher made: whoever waits for one may wait for ever, and
hears at once that its peer has ended. What ranks compute and agree on together goes through torch.distributed
(`group.py`); `store` is where they meet for that.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_RECEIVE_BYTES = 1 << 20


def _framed(said: bytes) -> bytes:
    return _LENGTH.pack(len(said)) + said


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

    def lose(self, reason: str) -> NoReturn:
        """End this process at once: a collective that waits for a lost rank cannot be interrupted. The server sees the
        socket of rank 0 end, which ends with any other, fails the requests, ends all ranks and starts them anew."""
        logger.error("%s: all ranks of the stage end", reason)
        os._exit(1)


class LeadingSeat(Seat):
    """Rank 0's. `peers` are its sockets to the others, in their order; it owns them. `patience_s` is how long a rank
    that has something to do may be silent; `on_lost`, while the stage starts, tells the server why that fails."""

    def __init__(self, store: str, peers: Sequence[socket.socket]) -> None:
        super().__init__(0, 1 + len(peers), store)
        self.patience_s = math.inf
        self.on_lost: Callable[[str], None] | None = None
        self._peers = dict(enumerate(peers, 1))
        self._unread = {rank: bytearray() for rank in self._peers}
        self._leaving = False

    def follow_here(self) -> FollowingSeat:
        """A seat of rank 0 among those that follow, for another thread of this process."""
        leading, following = socket.socketpair()
        self._peers[0], self._unread[0] = leading, bytearray()
        return FollowingSeat(0, self.size, self.store, following)

    def watch(self) -> None:
        """From now on this process ends when another rank does: there is no going on without it."""
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def tell(self, command: bytes, to: int | None = None) -> None:
        """One rank, or all that follow. Blocks while it has not read what it was told before."""
        for peer in self._peers.values() if to is None else (self._peers[to],):
            try:
                peer.sendall(_framed(command))
            except OSError:
                self.lose("a rank does not listen any more")

    def heard(self) -> list[tuple[int, bytes]]:
        """What ranks have said since, each with its number; does not wait."""
        said = []
        for rank, peer in self._peers.items():
            unread = self._unread[rank]
            # An end is for who watches: rank 0 may not be through with what came before it.
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while data := peer.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT):
                    unread += data
            while len(unread) >= _LENGTH.size and len(unread) >= (end := _LENGTH.size + _LENGTH.unpack_from(unread)[0]):
                said.append((rank, bytes(unread[_LENGTH.size : end])))
                del unread[:end]
        return said

    def wait(self, timeout_s: float) -> None:
        """Return when a rank has said something, or after the time."""
        select.select(list(self._peers.values()), (), (), timeout_s)

    def leave(self, farewell: bytes) -> None:
        """Tell the others that it is over: that they end is as it should be."""
        self._leaving = True
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.sendall(_framed(farewell))

    def lose(self, reason: str) -> NoReturn:
        if self.on_lost is not None:
            self.on_lost(reason)
        super().lose(reason)

    def _watch(self) -> None:
        poll = select.poll()
        ranks = {peer.fileno(): rank for rank, peer in self._peers.items()}
        for descriptor in ranks:
            poll.register(descriptor, 0)
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

    def hear_now(self) -> bytes | None:
        """The next command, if there is one."""
        return self.hear() if select.select((self._leader,), (), (), 0)[0] else None

    def say(self, answer: bytes) -> None:
        """To rank 0. Ends the process when that is gone."""
        try:
            self._leader.sendall(_framed(answer))
        except OSError:
            os._exit(0)

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
