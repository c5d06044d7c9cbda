"""A clock that moves only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class FakeClock:
    """Stands in for `time.monotonic`, `time.monotonic_ns` and `asyncio.sleep`. Time is kept in whole nanoseconds."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self._now_ns / 1e9

    def time_ns(self) -> int:
        return self._now_ns

    @property
    def sleeping(self) -> int:
        """How many `sleep` calls wait now."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Returns once the clock was advanced by `seconds`; after one turn of the loop if that is not positive."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_ns + round(seconds * 1e9), next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move the clock. Sleepers wake in order, each at its own time, and run before the next one wakes."""
        await settle()
        end_ns = self._now_ns + round(seconds * 1e9)
        while self._sleepers and self._sleepers[0][0] <= end_ns:
            due_ns, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue
            self._now_ns = due_ns
            woken.set_result(None)
            await settle()
        self._now_ns = end_ns


async def settle(turns: int = 20) -> None:
    """Let tasks run that wait for nothing outside the loop, for so many turns of it."""
    for _ in range(turns):
        await asyncio.sleep(0)
