"""Who may enter a worker: a number of slots, a bounded line before them, no entry where listeners would run dry."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from streamsynth.engine.cost import UNKNOWN, Cost
from streamsynth.errors import ErrorCode, StreamSynthError

BEHIND_TOLERANCE_S = 0.1
"""A worker whose most starved listener is late by more than this takes nobody new: more load would starve them all."""

RETRY_AFTER_MS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A worker's word on how busy it is, as in its heartbeat."""

    live: int = 0
    demand: int = 0
    cost: Cost = UNKNOWN
    behind_s: float = 0.0


class Ticket:
    """A place in line, and then a slot. `release` gives up whichever it is; it is idempotent and must be called."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def admitted(self) -> bool:
        return self._turn.done()

    async def wait(self) -> None:
        """Return when it is this ticket's turn; raises OVERLOADED when that takes too long. The ticket stays held."""
        timeout_s = self._slots.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._turn)
        except TimeoutError:
            message = f"no slot became free within {timeout_s:g} s"
            raise StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=RETRY_AFTER_MS) from None

    def admit(self) -> None:
        self._turn.set_result(None)

    def release(self) -> None:
        self._slots.leave(self)


class Slots:
    """First come, first served. `max_load`: seconds of steps a second that the worker can be asked for."""

    def __init__(self, *, running: int, queued: int, timeout_s: float, max_load: float) -> None:
        self.timeout_s = timeout_s
        self._limit = running
        self._queue_limit = queued
        self._max_load = max_load
        self._inside: set[Ticket] = set()
        self._line: deque[Ticket] = deque()
        self._load = Load()

    @property
    def held(self) -> int:
        return len(self._inside)

    @property
    def queued(self) -> int:
        return len(self._line)

    def reserve(self) -> Ticket:
        """A slot if one is free, else a place in line; raises OVERLOADED if the line is full."""
        ticket = Ticket(self)
        self._line.append(ticket)
        self._admit()
        if not ticket.admitted and len(self._line) > self._queue_limit:
            self._line.remove(ticket)
            message = f"{self.held} requests are running and {self.queued} wait, which is the limit"
            raise StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=RETRY_AFTER_MS)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        if ticket in self._inside:
            self._inside.remove(ticket)
        elif ticket in self._line:
            self._line.remove(ticket)
        self._admit()

    def set_load(self, load: Load) -> None:
        """Take the worker's word on what it has to do."""
        self._load = load
        self._admit()

    def _has_room(self) -> bool:
        if not self._inside:
            return True
        if len(self._inside) >= self._limit or self._load.behind_s > BEHIND_TOLERANCE_S:
            return False
        # What listeners hold hides for seconds that there are too many: those who will want more are counted instead.
        unheard_of = max(0, len(self._inside) - self._load.live)
        cost = self._load.cost
        return cost.shared + (self._load.demand + unheard_of + 1) * cost.each <= self._max_load

    def _admit(self) -> None:
        while self._line and self._has_room():
            ticket = self._line.popleft()
            self._inside.add(ticket)
            ticket.admit()
