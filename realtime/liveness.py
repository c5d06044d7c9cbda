"""Whether the peer of a socket is still there: when to ping it, and when silence means that it is gone. Pure."""

from __future__ import annotations

import math
from enum import Enum, auto


class Due(Enum):
    NOTHING = auto()
    PING = auto()
    DEAD = auto()


class Liveness:
    """Pings are due at a fixed interval; any bytes from the peer, not only pongs, prove that it lives.

    It is dead after `dead_peer_s` without bytes, but never before a ping had what remains of that after one interval to
    be answered: a server that was itself held up has not asked yet, and must not take its own silence for the peer's.
    """

    def __init__(self, now_s: float, *, ping_interval_s: float, dead_peer_s: float) -> None:
        self._ping_interval_s = ping_interval_s
        self._dead_peer_s = dead_peer_s
        self._ping_due_s = now_s + ping_interval_s
        self._heard_s = now_s
        self._asked_s: float | None = None

    def heard(self, at_s: float) -> None:
        """Bytes came at `at_s`; reports may come late and out of order."""
        self._heard_s = max(self._heard_s, at_s)
        if self._asked_s is not None and at_s >= self._asked_s:
            self._asked_s = None

    @property
    def next_s(self) -> float:
        """When `check` has something to say, unless the peer is heard before."""
        return min(self._ping_due_s, self._dead_s)

    def check(self, now_s: float) -> Due:
        if now_s >= self._dead_s:
            return Due.DEAD
        if now_s >= self._ping_due_s:
            self._ping_due_s = now_s + self._ping_interval_s
            if self._asked_s is None:
                self._asked_s = now_s
            return Due.PING
        return Due.NOTHING

    @property
    def _dead_s(self) -> float:
        if self._asked_s is None:
            return math.inf
        patience_s = max(self._dead_peer_s - self._ping_interval_s, 0.0)
        return max(self._heard_s + self._dead_peer_s, self._asked_s + patience_s)
