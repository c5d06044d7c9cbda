"""Which request a worker steps next: of those that have credit and work, the one whose listener has least in hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from streamsynth.engine.stream import Stream

K = TypeVar("K")

_EMPTY_STEP_PAUSE_S = 0.001

LISTENING_S = 2.0
"""A listener who is there grants credit again in less time than this; one who is not reading costs nothing."""

STUCK_AFTER_S = 1.0
"""A request whose steps have made nothing for this long is late by its own fault, not because the worker is busy."""


RELAXED_LEAD_S = 1.0
"""A listener who has so much in hand waits while another has heard nothing yet."""


@dataclass(slots=True, eq=False)
class Entry(Generic[K]):
    """A request in the worker. `granted` and `produced` are totals in units; times are `time.monotonic()` seconds.

    `runnable_since`: from when on it could have been stepped; `fruitless_since`: from when on it was, and made nothing.
    """

    key: K
    stream: Stream
    granted: int
    produced: int = 0
    rate: int = 0
    steps: int = 0
    first_output_at: float | None = None
    cancelled: bool = False
    runnable_since: float | None = None
    fruitless_since: float | None = None
    came_nearer_at: float = 0.0
    without_credit_since: float = 0.0
    pause_until: float = 0.0

    @property
    def has_credit(self) -> bool:
        return self.produced < self.granted

    def lead_s(self, now: float) -> float:
        """Media made, less the time since the first left: what a listener who began then still has. 0 before that."""
        if self.first_output_at is None:
            return 0.0
        return self.produced / self.rate - (now - self.first_output_at)

    def ready_at(self) -> float | None:
        """When a step makes sense, or None while text or credit is missing."""
        if not self.has_credit:
            return None
        wake = self.stream.wake_at()
        return None if wake is None else max(wake, self.pause_until)

    def made(self, units: int, rate: int, now: float) -> None:
        """Account for an emission; one of no units is none to a watchdog."""
        if units == 0:
            self.made_nothing(now)
            return
        if self.first_output_at is None:
            self.first_output_at = now
        self.rate = rate
        self.produced += units
        if not self.has_credit:
            self.without_credit_since = now
        self.wait_anew()

    def worked(self, now: float) -> None:
        """A step that brought a chunk nearer and has nothing to show yet: it is not stuck, and goes on at once."""
        self.fruitless_since = None
        self.came_nearer_at = now

    def made_nothing(self, now: float) -> None:
        """A step without output: let the others run before this one is asked again."""
        self.pause_until = now + _EMPTY_STEP_PAUSE_S
        self.left_out(now)

    def left_out(self, now: float) -> None:
        """A step over this and others made nothing for this one."""
        if self.fruitless_since is None:
            self.fruitless_since = now

    def is_wanted(self, now: float) -> bool:
        """Whether it has something to say to somebody who listens."""
        if not self.has_credit:
            return now - self.without_credit_since < LISTENING_S
        return self.stream.wake_at() is not None

    def wait_anew(self) -> None:
        """It has made something, or cannot be stepped now."""
        self.runnable_since = self.fruitless_since = None

    def fruitless_s(self, now: float) -> float:
        return 0.0 if self.fruitless_since is None else now - self.fruitless_since


@dataclass(slots=True)
class Scheduler(Generic[K]):
    """The requests of one worker. Pure: takes time as an argument, starts nothing, waits for nothing.

    `played`: somebody plays what is made as it comes, so that a lead counts. Else all wait alike, whatever they have.
    """

    entries: dict[K, Entry[K]] = field(default_factory=dict)
    played: bool = True

    def add(self, entry: Entry[K]) -> None:
        self.entries[entry.key] = entry

    def remove(self, key: K) -> None:
        del self.entries[key]

    def runnable(self, now: float) -> tuple[list[Entry[K]], float | None]:
        """The entries that should step now, least lead first and in order of arrival where equal; and when the next of
        the others will be ready (None: only a command can change that).

        While there is one that has made nothing yet, those that are far ahead stay out of its steps.
        """
        runnable: list[tuple[float, Entry[K]]] = []
        next_wake: float | None = None
        for entry in self.entries.values():
            ready = entry.ready_at()
            if ready is None:
                entry.wait_anew()
                continue
            if entry.runnable_since is None:
                entry.runnable_since = max(ready, now)
            if ready > now:
                next_wake = ready if next_wake is None else min(next_wake, ready)
                continue
            runnable.append((entry.lead_s(now) if self.played else 0.0, entry))
        runnable.sort(key=lambda pair: pair[0])
        if any(entry.first_output_at is None and entry.fruitless_s(now) < STUCK_AFTER_S for _, entry in runnable):
            runnable = [(lead, entry) for lead, entry in runnable if lead < RELAXED_LEAD_S]
        return [entry for _, entry in runnable], next_wake

    def behind_s(self, now: float) -> float:
        """By how much the listener of the most starved runnable entry has run dry; 0 if all are in time.

        Entries that are stuck do not count: fewer others would not help them.
        """
        if not self.played:
            return 0.0
        late = [
            -entry.lead_s(now)
            for entry in self.entries.values()
            if entry.runnable_since is not None
            and entry.runnable_since <= now
            and entry.fruitless_s(now) < STUCK_AFTER_S
        ]
        return max([0.0, *late])

    def demand(self, now: float) -> int:
        """How many entries will take a second of media each second, as far as can be seen."""
        return sum(entry.is_wanted(now) for entry in self.entries.values())

    def stuck_s(self, now: float) -> float:
        """How long the steps of the most stuck entry have made nothing; one that waits for its turn is not stuck."""
        return max([0.0, *(entry.fruitless_s(now) for entry in self.entries.values())])

    def stalled(self, now: float, timeout_s: float) -> list[Entry[K]]:
        """Entries that could have run for `timeout_s`, made nothing, and did not come nearer to it."""
        return [
            entry
            for entry in self.entries.values()
            if entry.runnable_since is not None and now - max(entry.runnable_since, entry.came_nearer_at) >= timeout_s
        ]
