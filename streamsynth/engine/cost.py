"""What speech costs its worker: seconds of work for a second of media, as recent steps had it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_KEPT = 0.8
"""Of what came before, at each look: a few seconds of work count."""

_RECENT_LOOKS = 120
"""A minute of heartbeats."""

_GUESS_WEIGHT = 0.1
"""How much the guess of what is shared counts beside what was seen: enough to decide where one number was seen."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of work a second: `shared` by all who speak in one step, and `each` for each of them."""

    shared: float
    each: float


UNKNOWN = Cost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Steps over `sharers` requests that an engine made to try itself: their work, and the media of all in sum."""

    sharers: int
    work_s: float
    media_s: float


@dataclass(slots=True)
class _Seen:
    """Steps over the same number of requests: their work and all of their media. Work that has made nothing yet counts
    with the media that it leads to; if that does not come, because nobody wants it any more, it is forgotten."""

    work_s: float = 0.0
    media_s: float = 0.0
    pending_s: float = 0.0
    looked_at: tuple[float, float] = (0.0, 0.0)
    idle_looks: int = 0

    @property
    def recent(self) -> bool:
        return self.media_s > 0 and self.idle_looks < _RECENT_LOOKS

    def add(self, work_s: float, media_s: float) -> None:
        self.pending_s += work_s
        if media_s > 0:
            self.work_s += self.pending_s
            self.media_s += media_s
            self.pending_s = 0.0

    def fade(self) -> None:
        media_s, pending_s = self.looked_at
        self.idle_looks += 1
        if self.media_s > media_s:
            self.work_s *= _KEPT
            self.media_s *= _KEPT
            self.idle_looks = 0
        elif self.pending_s == pending_s:
            self.pending_s *= _KEPT
        self.looked_at = (self.media_s, self.pending_s)


class MediaCost:
    """Steps go in as they are made; `look` once in a while.

    Many who share a step cost less than as many alone: the cost is a line through what was seen at each number. For
    numbers that were not seen lately it is what the rehearsals of them took, by as much more or less as the others take
    now: a machine that was busy for a while does not keep requests out for ever. While only one number is known,
    `guess` is the part of its cost that is taken to be shared.
    """

    def __init__(self, guess: float = 0.0, rehearsals: Sequence[Rehearsal] = ()) -> None:
        self._guess = guess
        tried: dict[int, _Seen] = {}
        for each in rehearsals:
            tried.setdefault(each.sharers, _Seen()).add(each.work_s, each.media_s)
        self._rehearsed = {number: number * each.work_s / each.media_s for number, each in tried.items()}
        self._pace = 1.0
        self._seen: dict[int, _Seen] = {}

    def add(self, work_s: float, media_s: float, sharers: int = 1) -> bool:
        """A step over so many took `work_s` and made `media_s` in sum. Returns whether it is the first word at all."""
        first = media_s > 0 and not self._rehearsed and not any(seen.media_s for seen in self._seen.values())
        self._seen.setdefault(sharers, _Seen()).add(work_s, media_s)
        return first

    def look(self) -> Cost:
        """The cost now, UNKNOWN if nothing was made yet; from here on, what went in before counts less."""
        points = self._points()
        for seen in self._seen.values():
            seen.fade()
        if not points:
            return UNKNOWN
        guessed = (0, self._guess * points[min(points)], _GUESS_WEIGHT)
        return _line([guessed, *((number, work, 1.0) for number, work in points.items())])

    def _points(self) -> dict[int, float]:
        """Work a second by the number of those who share it."""
        seen = {number: number * each.work_s / each.media_s for number, each in self._seen.items() if each.media_s}
        recent = {number: work for number, work in seen.items() if self._seen[number].recent}
        if both := recent.keys() & self._rehearsed.keys():
            self._pace = sum(recent[number] for number in both) / sum(self._rehearsed[number] for number in both)
        expected = {number: work * self._pace for number, work in self._rehearsed.items()}
        return expected | recent if expected or recent else seen


def _line(points: list[tuple[int, float, float]]) -> Cost:
    """Weighted least squares through (sharers, work, weight); no part of the cost is negative."""
    total = sum(weight for _, _, weight in points)
    middle = sum(weight * number for number, _, weight in points) / total
    level = sum(weight * work for _, work, weight in points) / total
    spread = sum(weight * (number - middle) ** 2 for number, _, weight in points)
    each = sum(weight * (number - middle) * work for number, work, weight in points) / spread
    shared = level - each * middle
    if each < 0.0 or shared < 0.0:
        number, work, _ = max(points)
        return Cost(0.0, work / number)
    return Cost(shared, each)
