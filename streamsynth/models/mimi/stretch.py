"""Speech faster or slower at the same pitch: WSOLA (Verhelst and Roelands, 1993), as it comes.

Windows are taken from the input at `speed` times the pace at which they are laid down, each from where it goes on best
from the one before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]

HOPS_A_SECOND = 50
"""Half a window is 20 ms: two periods of a low voice."""

SEARCHES_A_SECOND = 80
"""A window may be taken 12.5 ms sooner or later than its turn: half a period of any voice."""


class Stretcher:
    """One passage. What comes out does not depend on the chunks that went in; it is whole hops until `finish`."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        self._speed = speed
        self._hop = sample_rate // HOPS_A_SECOND
        self._reach = sample_rate // SEARCHES_A_SECOND
        rising = np.sin(np.arange(self._hop) * (np.pi / 2 / self._hop)) ** 2
        self._window = np.concatenate((rising, 1 - rising)).astype(np.float32)
        self._input = np.zeros(0, np.float32)
        self._dropped = 0
        self._taken = 0
        self._windows = 0
        self._last = 0
        self._tail = np.zeros(self._hop, np.float32)

    def push(self, samples: Float) -> Float:
        """What can be said of the passage now that these samples have come."""
        self._input = np.concatenate((self._input, samples))
        self._taken += len(samples)
        made = []
        while self._needs() <= self._dropped + len(self._input):
            made.append(self._next_hop())
        self._drop()
        return np.concatenate(made) if made else np.zeros(0, np.float32)

    def finish(self, block: int) -> Float:
        """The rest of the passage, so that all of it is whole blocks."""
        wanted = round(self._taken / self._speed / block) * block - self._windows * self._hop
        silence = np.zeros(2 * self._hop + self._reach, np.float32)
        made = [np.zeros(0, np.float32)]
        while sum(map(len, made)) < wanted:
            made.append(self.push(silence))
        return np.concatenate(made)[: max(0, wanted)]

    @property
    def _turn(self) -> int:
        """Where in the input the next window would be taken from, if it went on as well from there."""
        return round(self._windows * self._hop * self._speed)

    def _needs(self) -> int:
        return max(self._turn + self._reach, self._last) + 2 * self._hop

    def _next_hop(self) -> Float:
        start = self._best_start() if self._windows else 0
        window = self._at(start, 2 * self._hop) * self._window
        if not self._windows:
            window[: self._hop] = self._at(start, self._hop)
        hop: Float = self._tail + window[: self._hop]
        self._tail = window[self._hop :]
        self._last = start
        self._windows += 1
        return hop

    def _best_start(self) -> int:
        """Where the input is most like what follows the last window in it."""
        first = max(0, self._turn - self._reach)
        wanted = self._at(self._last + self._hop, self._hop)
        offered = self._at(first, self._turn + self._reach - first + self._hop)
        likeness = np.correlate(offered, wanted, "valid")
        energy = np.convolve(offered**2, np.ones(self._hop, np.float32), "valid")
        return first + int(np.argmax(likeness / np.sqrt(energy + 1e-6)))

    def _at(self, start: int, count: int) -> Float:
        begin = start - self._dropped
        return self._input[begin : begin + count]

    def _drop(self) -> None:
        """Forget what no window will be taken from."""
        keep = max(0, min(self._turn - self._reach, self._last + self._hop) - self._dropped)
        self._input = self._input[keep:]
        self._dropped += keep
