"""Who may start now: open sessions, running utterances, a bounded queue, and the share of each that a key may hold."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum, auto
from types import TracebackType
from typing import Self

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.auth import Caller
from streamsynth.realtime.limits import Limits

_FIRST_GUESS_S = 2.0
_SMOOTHING = 0.2


def _overloaded(message: str, retry_after_ms: int) -> StreamSynthError:
    return StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=retry_after_ms)


class SessionPlace:
    """An open session's place; `release` gives it back, once or more often. A context manager does too."""

    def __init__(self, sessions: Counter[Caller], caller: Caller) -> None:
        self._sessions = sessions
        self._caller: Caller | None = caller

    def release(self) -> None:
        if self._caller is not None:
            self._sessions[self._caller] -= 1
            self._caller = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _State(Enum):
    QUEUED = auto()
    RUNNING = auto()
    RELEASED = auto()


class Ticket:
    """One utterance's place in the queue, then among the running ones. `release` is idempotent and always valid.

    `granted` waits for the turn, at most `queue_wait_s`, and then raises `overloaded`. Cancelling it keeps the place.
    """

    def __init__(self, admission: Admission, caller: Caller) -> None:
        self._admission = admission
        self._turn = asyncio.Event()
        self.caller = caller
        self.state = _State.QUEUED
        self.started_s = 0.0

    @property
    def running(self) -> bool:
        return self.state is _State.RUNNING

    def start(self, now_s: float) -> None:
        """For Admission alone: the turn has come."""
        self.state, self.started_s = _State.RUNNING, now_s
        self._turn.set()

    async def granted(self) -> None:
        wait_s = self._admission.limits.queue_wait_s
        try:
            async with asyncio.timeout(wait_s):
                await self._turn.wait()
        except TimeoutError:
            self.release()
            message = f"no place became free within {wait_s:g} s"
            raise _overloaded(message, self._admission.retry_after_ms()) from None

    def release(self) -> None:
        before, self.state = self.state, _State.RELEASED
        if before is not _State.RELEASED:
            self._admission.leave(self, was_running=before is _State.RUNNING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Admission:
    """Counts what is open. Nothing here blocks; waiting happens in `Ticket.granted`.

    `shared` is whether several keys share the server: then each may hold `key_share` of the places. Utterances start in
    the order of their requests, except that a caller at its share is passed over until one of its own ends.
    """

    def __init__(self, limits: Limits, *, shared: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._share = limits.key_share if shared else 1.0
        self._clock = clock
        self._sessions: Counter[Caller] = Counter()
        self._running: Counter[Caller] = Counter()
        self._queue: deque[Ticket] = deque()
        self._held_s = _FIRST_GUESS_S

    @property
    def sessions(self) -> int:
        return self._sessions.total()

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def queued(self) -> int:
        return len(self._queue)

    def open_session(self, caller: Caller) -> SessionPlace:
        """A place for one socket; raises `overloaded` when the server or the caller's share is full."""
        if self.sessions >= self.limits.sessions:
            raise _overloaded(f"{self.limits.sessions} sessions are open, the limit", self.retry_after_ms())
        share = self.part(self.limits.sessions)
        if self._sessions[caller] >= share:
            raise _overloaded(f"this API key has {share} sessions open, its share", self.retry_after_ms())
        self._sessions[caller] += 1
        return SessionPlace(self._sessions, caller)

    def request(self, caller: Caller) -> Ticket:
        """Take a place in the queue, or at once among the running; raises `overloaded` when the queue is full."""
        ticket = Ticket(self, caller)
        if self._may_start(caller):  # those in the queue may not, or they would have started
            self._start(ticket)
            return ticket
        if self.queued >= self.limits.queued_utterances:
            message = f"{self.running} utterances are running and {self.queued} wait, the limit"
            raise _overloaded(message, self.retry_after_ms())
        share = self.part(self.limits.queued_utterances)
        if sum(waiting.caller == caller for waiting in self._queue) >= share:
            raise _overloaded(f"this API key has {share} utterances waiting, its share", self.retry_after_ms())
        self._queue.append(ticket)
        return ticket

    def leave(self, ticket: Ticket, *, was_running: bool) -> None:
        """For Ticket alone: it was released."""
        if was_running:
            self._running[ticket.caller] -= 1
            self._held_s += _SMOOTHING * (self._clock() - ticket.started_s - self._held_s)
        else:
            self._queue.remove(ticket)
        self._start_waiting()

    def part(self, limit: int) -> int:
        """How much of so many places one caller may hold."""
        return max(1, int(limit * self._share))

    def retry_after_ms(self) -> int:
        """How long the utterances that wait now will take to start, from how long recent ones held their place."""
        rounds = (self.queued + 1) / self.limits.running_utterances
        return int(1000 * min(max(self._held_s * rounds, 1.0), 60.0))

    def _may_start(self, caller: Caller) -> bool:
        total = self.limits.running_utterances
        return self.running < total and self._running[caller] < self.part(total)

    def _start(self, ticket: Ticket) -> None:
        self._running[ticket.caller] += 1
        ticket.start(self._clock())

    def _start_waiting(self) -> None:
        for ticket in list(self._queue):
            if self.running >= self.limits.running_utterances:
                return
            if self._may_start(ticket.caller):
                self._queue.remove(ticket)
                self._start(ticket)
