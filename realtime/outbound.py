"""The one writer of a socket: takes frames when the transport has room for them, and knows when it has had none.

It never cancels a send and never waits for a peer that may not read: waiting is for `drained` alone, which a lost or
aborted connection ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from streamsynth.realtime.frame_queue import Frame

logger = logging.getLogger(__name__)

_STALL_CHECKS = 8


class Transport(Protocol):
    """A WebSocket's sending side. Writes put a whole frame into the transport's buffer at once; all of them raise
    ConnectionError once the connection is lost."""

    def write(self, frame: Frame) -> None: ...

    def write_ping(self) -> None: ...

    def write_pong(self, payload: bytes) -> None: ...

    def write_close(self, code: int, reason: str) -> None: ...

    async def drained(self) -> None:
        """Until the transport's buffer is empty; raises ConnectionError, or returns, when the connection is lost."""

    @property
    def buffered_bytes(self) -> int: ...

    @property
    def taken_bytes(self) -> int:
        """Grows when the peer takes something while nothing is written."""

    def abort(self) -> None: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The clock of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


class Outbound:
    """`take` gives the next frame, `sent` is called when it was written, `stalled` when the peer has taken
    nothing of what waits for it for `write_stall_s`. `nudge` says that `take` may have something.

    `run` belongs in a task of its own that nobody cancels: after `end`, or when the connection is lost, it returns.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        take: Callable[[], Frame | None],
        sent: Callable[[], None],
        stalled: Callable[[], None],
        write_stall_s: float,
        close_wait_s: float,
        timers: Timers | None = None,
    ) -> None:
        self._transport = transport
        self._take = take
        self._sent = sent
        self._stalled = stalled
        self._write_stall_s = write_stall_s
        self._close_wait_s = close_wait_s
        self._timers = timers or asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._ping_due = False
        self._pong: bytes | None = None
        self._taken = 0
        self._progress_s = 0.0
        self._look_timer: Timer | None = None
        self._abort_timer: Timer | None = None
        self.ended = False

    async def run(self) -> None:
        """Write until the end. Returns when the close frame has left the buffer, or the connection is lost."""
        try:
            while not self.ended:
                if self._write_next():
                    if self._transport.buffered_bytes:
                        await self._drained()
                    # A transport that takes everything must not keep the loop from reading the next cancel.
                    await asyncio.sleep(0)
                else:
                    self._work.clear()
                    await self._work.wait()
            await self._transport.drained()
        except ConnectionError:
            pass
        except Exception:
            logger.exception("a writer failed")
            self._transport.abort()
        finally:
            self.ended = True

    def nudge(self) -> None:
        self._work.set()

    def ping(self) -> None:
        self._ping_due = True
        self._work.set()

    def pong(self, payload: bytes) -> None:
        """Answer a ping. Of several that wait, the last one is answered, as RFC 6455 allows."""
        self._pong = payload
        self._work.set()

    def end(self, code: int, reason: str, last: Frame | None = None) -> None:
        """Write `last` and a close frame, without waiting for anything, and nothing after them. Idempotent.

        The transport is aborted after `close_wait_s`, unless `release` comes before: when the peer has closed too.
        """
        if self.ended:
            return
        self.ended = True
        self._work.set()
        try:
            if last is not None:
                self._transport.write(last)
            self._transport.write_close(code, _shortened(reason))
        except ConnectionError:
            return
        self._abort_timer = self._timers.call_later(self._close_wait_s, self._transport.abort)

    def abandon(self) -> None:
        """Abort the connection, unless `end` has begun to end it."""
        if not self.ended:
            self.ended = True
            self._work.set()
            self._transport.abort()

    def release(self) -> None:
        """The connection needs no abort any more: it has ended, or is ending by itself."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()

    def _write_next(self) -> bool:
        if self._pong is not None:
            self._transport.write_pong(self._pong)
            self._pong = None
        elif self._ping_due:
            self._transport.write_ping()
            self._ping_due = False
        else:
            frame = self._take()
            if frame is None:
                return False
            self._transport.write(frame)
            self._sent()
        return True

    async def _drained(self) -> None:
        self._taken = self._transport.taken_bytes
        self._progress_s = self._timers.time()
        self._watch()
        try:
            await self._transport.drained()
        finally:
            if self._look_timer is not None:
                self._look_timer.cancel()

    def _watch(self) -> None:
        self._look_timer = self._timers.call_later(self._write_stall_s / _STALL_CHECKS, self._look)

    def _look(self) -> None:
        """Has the peer taken anything since the last look? Then it is slow, not stalled."""
        now_s, taken = self._timers.time(), self._transport.taken_bytes
        if taken > self._taken:
            self._progress_s = now_s
        self._taken = taken
        if now_s >= self._progress_s + self._write_stall_s:
            self._stalled()
        else:
            self._watch()


def _shortened(reason: str) -> str:
    """The longest start of the reason that fits into a close frame: 123 bytes of UTF-8."""
    return reason.encode()[:123].decode(errors="ignore")
