"""Whether a listener hears speech without gaps: the arithmetic of a player that starts with the first chunk."""

from __future__ import annotations


class IdealPlayer:
    """Starts at the first chunk, never rebuffers, and remembers the worst time that a later chunk came too late."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._samples = 0
        self._first_s: float | None = None
        self.worst_underrun_s = 0.0

    @property
    def media_s(self) -> float:
        return self._samples / self._sample_rate

    def received(self, samples: int, now_s: float) -> None:
        """A chunk is late by the time since the first chunk beyond the media that came before it."""
        if self._first_s is None:
            self._first_s = now_s
        self.worst_underrun_s = max(self.worst_underrun_s, (now_s - self._first_s) - self.media_s)
        self._samples += samples
