"""What one viewer of a video saw, and when. Pure: time is an argument, in nanoseconds of any one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Arrival:
    """A whole generation chunk: when its last payload came, and the media time from its first picture to its end."""

    chunk: int
    at_ns: int
    media_ns: int
    end_ns: int


@dataclass(slots=True)
class Steer:
    """One interaction, from when it was sent."""

    sent_ns: int
    queued_ns: int | None = None
    applied_ns: int | None = None
    delivered_ns: int | None = None
    superseded: bool = False


@dataclass(slots=True)
class Watcher:
    """Takes the messages of one session in order. A chunk counts once its last payload is there."""

    began_ns: int
    arrivals: list[Arrival] = field(default_factory=list)
    steers: dict[str, Steer] = field(default_factory=dict)
    first_payload_ns: int | None = None
    frames: int = 0
    _open: Arrival | None = None

    def steered(self, event_id: str, now_ns: int) -> None:
        self.steers[event_id] = Steer(now_ns)

    def queued(self, event_id: str, now_ns: int) -> None:
        self.steers[event_id].queued_ns = now_ns

    def applied(self, event_id: str, now_ns: int) -> None:
        self.steers[event_id].applied_ns = now_ns

    def superseded(self, event_id: str) -> None:
        self.steers[event_id].superseded = True

    def media(self, chunk: int, frames: int, media_ns: int, end_ns: int, started: Sequence[str], now_ns: int) -> None:
        """A payload of a chunk; several of one chunk follow each other."""
        if self.first_payload_ns is None:
            self.first_payload_ns = now_ns
        self.frames += frames
        if self._open is not None and self._open.chunk == chunk:
            self._open = Arrival(chunk, now_ns, self._open.media_ns, end_ns)
        else:
            self.close()
            self._open = Arrival(chunk, now_ns, media_ns, end_ns)
        for event_id in started:
            self.steers[event_id].delivered_ns = now_ns

    def close(self) -> None:
        """No payload will come any more of the chunk under way."""
        if self._open is not None:
            self.arrivals.append(self._open)
            self._open = None

    def between_ns(self) -> list[int]:
        """The times between one chunk and the next."""
        times = [arrival.at_ns for arrival in self.arrivals]
        return [later - earlier for earlier, later in pairwise(times)]

    def lateness_ns(self) -> list[int]:
        """How late each chunk was for a player that starts with the first one and never waits; 0 for one in time."""
        if not self.arrivals:
            return []
        start = self.arrivals[0].at_ns - self.arrivals[0].media_ns
        return [max(0, arrival.at_ns - start - arrival.media_ns) for arrival in self.arrivals]

    def stalls(self, buffered: int) -> int:
        """How often the picture stands for a player that starts once it has `buffered` chunks, and after a stall goes
        on as soon as the missing chunk is there."""
        if len(self.arrivals) < buffered:
            return 0
        start = self.arrivals[buffered - 1].at_ns - self.arrivals[0].media_ns
        count = 0
        for arrival in self.arrivals:
            late = arrival.at_ns - start - arrival.media_ns
            if late > 0:
                count += 1
                start += late
        return count
