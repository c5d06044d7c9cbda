"""What speech costs its worker: seconds of work for a second of media, as recent steps had it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_KEPT = 0.8
"""Of what came before, at each look: a few seconds of work count."""

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
    """Steps over the same number of requests: their work and all of their media."""

    work_s: float = 0.0
    media_s: float = 0.0
    looked_at_s: float = 0.0

    def fade(self) -> None:
        if self.media_s > self.looked_at_s:
            self.work_s *= _KEPT
            self.media_s *= _KEPT
            self.looked_at_s = self.media_s


class MediaCost:
    """Steps go in as they are made; `look` once in a while.

    Many who share a step cost less than as many alone: the cost is a line through what was seen at each number. While
    only one number has been seen, `guess` is the part of it that is taken to be shared.
    """

    def __init__(self, guess: float = 0.0) -> None:
        self._guess = guess
        self._seen: dict[int, _Seen] = {}

    def add(self, work_s: float, media_s: float, sharers: int = 1) -> bool:
        """A step over so many took `work_s` and made `media_s` in sum. Returns whether it is the first word at all."""
        first = media_s > 0 and not any(seen.media_s for seen in self._seen.values())
        seen = self._seen.setdefault(sharers, _Seen())
        seen.work_s += work_s
        seen.media_s += media_s
        return first

    def look(self) -> Cost:
        """The cost now, UNKNOWN if nothing was made yet; from here on, what went in before counts less."""
        points = [(number, number * seen.work_s / seen.media_s) for number, seen in self._seen.items() if seen.media_s]
        if not points:
            return UNKNOWN
        for seen in self._seen.values():
            seen.fade()
        return _line([(0, self._guess * min(points)[1], _GUESS_WEIGHT), *((*point, 1.0) for point in points)])


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
