"""Who may enter a worker: a number of slots, a bounded line before them, no entry while listeners inside run dry."""

from __future__ import annotations

import asyncio
from collections import deque

from streamsynth.errors import ErrorCode, StreamSynthError

BEHIND_TOLERANCE_S = 0.1
"""A worker whose most starved listener is late by more than this takes nobody new: more load would starve them all."""

RETRY_AFTER_MS = 1000


class Slots:
    """First come, first served. `behind_s` is what the worker last said of its most starved request."""

    def __init__(self, *, running: int, queued: int, timeout_s: float) -> None:
        self._limit = running
        self._queue_limit = queued
        self._timeout_s = timeout_s
        self._held = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._behind_s = 0.0

    @property
    def held(self) -> int:
        return self._held

    @property
    def queued(self) -> int:
        return len(self._line)

    def check(self) -> None:
        """Raise OVERLOADED if a request that came now could not even wait."""
        if not self._free() and len(self._line) >= self._queue_limit:
            message = f"{self._held} requests are running and {len(self._line)} wait, which is the limit"
            raise StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=RETRY_AFTER_MS)

    async def acquire(self) -> None:
        """Take a slot, waiting in line; raises OVERLOADED as `check` does, and when the wait takes too long."""
        self.check()
        if self._free():
            self._held += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn
        except TimeoutError:
            self._leave(turn)
            message = f"no slot became free within {self._timeout_s:g} s"
            raise StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=RETRY_AFTER_MS) from None
        except asyncio.CancelledError:
            self._leave(turn)
            raise

    def release(self) -> None:
        self._held -= 1
        self._admit()

    def set_behind(self, behind_s: float) -> None:
        self._behind_s = behind_s
        self._admit()

    def _free(self) -> bool:
        return not self._line and self._has_room()

    def _has_room(self) -> bool:
        return self._held == 0 or (self._held < self._limit and self._behind_s <= BEHIND_TOLERANCE_S)

    def _leave(self, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self.release()  # The turn came in the same moment.
        else:
            self._line.remove(turn)

    def _admit(self) -> None:
        while self._line and self._has_room():
            self._held += 1
            self._line.popleft().set_result(None)
