"""How late the event loop runs what is due: the one number that says whether something blocks it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

_INTERVAL_S = 0.05


async def probe_loop_lag(
    observe: Callable[[float], None],
    *,
    interval_s: float = _INTERVAL_S,
    clock: Callable[[], float] = monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Sleep again and again, and report by how much each sleep was too long. Runs until it is cancelled."""
    while True:
        due_s = clock() + interval_s
        await sleep(interval_s)
        observe(max(0.0, clock() - due_s))
