"""The orderly end of the server: no new work, a time for what runs, then the end of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streamsynth.errors import ErrorCode, StreamSynthError

_RETRY_AFTER_MS = 5000


class Draining:
    """What everything long-running registers with. `begun` and `expired` never go back.

    Work hears `on_begin` once no new work is accepted (a socket then ends when its utterances have), and `on_expiry`
    when its time is over (it must end now). Callbacks run on the loop, in no order, and must neither block nor raise.
    """

    def __init__(self) -> None:
        self._work: set[_Work] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.begun = False
        self.expired = False

    @property
    def running(self) -> int:
        return len(self._work)

    def refuse_if_begun(self) -> None:
        """Raises `shutting_down` once draining has begun."""
        if self.begun:
            raise StreamSynthError(
                ErrorCode.SHUTTING_DOWN, "the server is shutting down", retry_after_ms=_RETRY_AFTER_MS
            )

    @contextmanager
    def work(
        self, *, on_begin: Callable[[], None] | None = None, on_expiry: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Something that draining waits for, from here to the end of the block. Refused once draining has begun."""
        self.refuse_if_begun()
        work = _Work(on_begin, on_expiry)
        self._work.add(work)
        self._idle.clear()
        try:
            yield
        finally:
            self._work.discard(work)
            if not self._work:
                self._idle.set()

    def begin(self) -> None:
        if not self.begun:
            self.begun = True
            for work in list(self._work):
                if work.on_begin:
                    work.on_begin()

    def expire(self) -> None:
        self.begin()
        if not self.expired:
            self.expired = True
            for work in list(self._work):
                if work.on_expiry:
                    work.on_expiry()

    async def idle(self) -> None:
        """Returns when no work is left."""
        await self._idle.wait()


class _Work:
    __slots__ = ("on_begin", "on_expiry")

    def __init__(self, on_begin: Callable[[], None] | None, on_expiry: Callable[[], None] | None) -> None:
        self.on_begin = on_begin
        self.on_expiry = on_expiry
