"""What speech costs its worker: seconds of work for a second of media, as recent steps had it. Pure."""

from __future__ import annotations

_KEPT = 0.8
"""Of what came before, at each look: a few seconds of work count."""


class MediaCost:
    """Steps go in as they are made; `look` once in a while."""

    def __init__(self) -> None:
        self._work_s = 0.0
        self._media_s = 0.0
        self._looked_at_s = 0.0

    @property
    def known(self) -> bool:
        return self._media_s > 0

    def add(self, work_s: float, media_s: float) -> None:
        """A step took `work_s` and made `media_s`."""
        self._work_s += work_s
        self._media_s += media_s

    def look(self) -> float:
        """The cost now, 0 if nothing was made yet; from here on, what went in before counts less."""
        if not self.known:
            return 0.0
        cost = self._work_s / self._media_s
        if self._media_s > self._looked_at_s:
            self._work_s *= _KEPT
            self._media_s *= _KEPT
            self._looked_at_s = self._media_s
        return cost
