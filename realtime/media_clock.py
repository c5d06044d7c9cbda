"""Where a viewer is in the video, as far as can be told from here: when the next chunk may leave. Pure."""

from __future__ import annotations


class MediaClock:
    """A viewer begins with the first picture that it has, and stands still whenever it has none left.

    Positions are seconds of media; times are of any one clock. A report of the viewer's own overrules what was assumed,
    so that one that pauses, or plays later than it could, holds the lead too. A `live` video waits for no viewer: time
    goes on from its first picture, whatever has arrived.
    """

    def __init__(self, lead_s: float, *, live: bool = False) -> None:
        self._lead_s = lead_s
        self._live = live
        self._sent_s = 0.0
        self._position_s = 0.0
        self._since_s: float | None = None

    def sent(self, until_s: float, now_s: float) -> None:
        """The transport took everything before `until_s`."""
        self._position_s = self.position_s(now_s)
        self._since_s = now_s
        self._sent_s = max(self._sent_s, until_s)

    def reported(self, position_s: float, now_s: float) -> None:
        """The viewer says where it is. What it cannot have yet does not count."""
        if self._live:
            return
        self._position_s = min(position_s, self._sent_s)
        self._since_s = now_s if self._since_s is not None else None

    def position_s(self, now_s: float) -> float:
        if self._since_s is None:
            return self._position_s
        position_s = self._position_s + (now_s - self._since_s)
        return position_s if self._live else min(position_s, self._sent_s)

    def lead_s(self, now_s: float) -> float:
        """Media that the viewer has and has not seen."""
        return self._sent_s - self.position_s(now_s)

    def wait_s(self, start_s: float, now_s: float) -> float:
        """How long until the chunk that begins at `start_s` may leave: when the viewer is the lead's length before it.
        0 if now."""
        if self._since_s is None:
            return 0.0
        return max(0.0, start_s - self._lead_s - self.position_s(now_s))
