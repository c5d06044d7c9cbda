"""How fast frames come for listeners who wait for them, and so how many the first chunk of a stream should have."""

from __future__ import annotations

FIRST_FRAMES = ((0.45, 1), (0.6, 3), (0.8, 5))
"""How many frames the first chunk has while frames come at most at such a share of real time. A first chunk that is a
single frame starves its listener where the second is late."""

MOST_FIRST_FRAMES = 8

LONGEST_INTERVAL_S = 1.0
"""A frame that took longer was waited for by nobody."""

_KEPT = 0.9
"""Of what came before, at each frame: the last ten or so count."""


class Pace:
    """A moving mean over the frames of all streams. Pure: takes intervals, reads no clock."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._media_s = 0.0

    def add(self, interval_s: float, media_s: float) -> None:
        """So much media came so long after what came before it."""
        if interval_s < LONGEST_INTERVAL_S:
            self._waited_s = _KEPT * self._waited_s + interval_s
            self._media_s = _KEPT * self._media_s + media_s

    @property
    def first_frames(self) -> int:
        share = self._waited_s / self._media_s if self._media_s else 0.0
        return next((frames for limit, frames in FIRST_FRAMES if share <= limit), MOST_FIRST_FRAMES)
