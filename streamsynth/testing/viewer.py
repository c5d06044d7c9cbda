"""A viewer that starts playing at the first chunk, and the continuity figures of many such viewers.

Time is an argument, in nanoseconds of any one clock; positions are counted in samples, so nothing accumulates an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

AUDIBLE_LEVEL = 0.01
"""-40 dB of full scale: the quietest sample that counts as sound."""


class Viewer:
    """Plays one utterance from its first chunk on, on a clock that never waits for late chunks.

    The lateness of a chunk is how long after its place on that clock it came; a chunk in time has none. Silence that
    the player would have to insert does not move later chunks: a constant delay after one hiccup is the same hiccup.
    """

    def __init__(self, sample_rate: int) -> None:
        if sample_rate <= 0:
            raise ValueError(f"sample_rate is {sample_rate}; it must be positive")
        self.sample_rate = sample_rate
        self.samples = 0
        self.chunks = 0
        self.first_samples = 0
        self.worst_lateness_ns = 0
        self.lateness_ns: list[int] = []
        self._started_ns: int | None = None
        self._onset_sample: int | None = None

    @property
    def started_ns(self) -> int | None:
        """When the first samples came, and the player's clock started."""
        return self._started_ns

    @property
    def audible_ns(self) -> int | None:
        """When the player's clock reaches the first sample of at least `AUDIBLE_LEVEL`; None if there was none."""
        if self._started_ns is None or self._onset_sample is None:
            return None
        return self._started_ns + self._position_ns(self._onset_sample)

    def receive(self, now_ns: int, samples: npt.NDArray[np.float32]) -> int:
        """Take the next contiguous samples; returns their lateness in nanoseconds. An empty chunk is never late."""
        count = len(samples)
        if count == 0:
            return 0
        if self._started_ns is None:
            self._started_ns = now_ns
            self.first_samples = count
        lateness = max(0, now_ns - self._started_ns - self._position_ns(self.samples))
        self._find_onset(samples)
        self.samples += count
        self.chunks += 1
        self.lateness_ns.append(lateness)
        self.worst_lateness_ns = max(self.worst_lateness_ns, lateness)
        return lateness

    def _find_onset(self, samples: npt.NDArray[np.float32]) -> None:
        if self._onset_sample is not None:
            return
        loud = np.flatnonzero(np.abs(samples) >= AUDIBLE_LEVEL)
        if len(loud):
            self._onset_sample = self.samples + int(loud[0])

    def _position_ns(self, sample: int) -> int:
        return sample * 1_000_000_000 // self.sample_rate


@dataclass(frozen=True, slots=True)
class Continuity:
    """Shares (0..1) of the requests whose worst underrun was within 50, 100 and 200 ms."""

    c50: float
    c100: float
    c200: float


def continuity(underruns_ns: Sequence[int], *, failed: int = 0) -> Continuity:
    """The continuity of many requests. A failed request left its listener without speech: it is within no limit."""
    total = len(underruns_ns) + failed
    if total == 0:
        raise ValueError("continuity of no requests")
    shares = [sum(underrun <= limit_ms * 1_000_000 for underrun in underruns_ns) / total for limit_ms in (50, 100, 200)]
    return Continuity(*shares)
