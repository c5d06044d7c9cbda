"""What stands between two passages of speech: a pause of known length in place of the silence that a talker makes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]

BLOCKS_A_SECOND = 200

FAINT = 0.001
"""A block whose peak is below this is silence."""

AUDIBLE = 0.01
"""Speech is clear from here on; softer is breath, or the start of a soft consonant."""

FAINT_BLOCKS = 8
"""How much of what is softer than AUDIBLE is kept at a start: with the block that is audible, 45 ms at most."""

SILENT_BLOCKS = 4
"""How much of that is silence: Whisper misses a first "the" that comes at once."""


class Joiner:
    """Shapes one stream's samples, passage after passage; what comes out does not depend on the chunks that went in.

    With `shapes` a passage starts where it can be heard, and does not break off with a click; chunks then are whole
    blocks of `sample_rate` / BLOCKS_A_SECOND.
    """

    def __init__(self, sample_rate: int, *, shapes: bool) -> None:
        self.block = sample_rate // BLOCKS_A_SECOND
        self._ramp = np.linspace(0, 1, self.block, endpoint=False, dtype=np.float32)
        self._shapes = shapes
        self.begin()

    def begin(self) -> None:
        """The next samples start a passage."""
        self._leading = self._shapes
        self._head = np.zeros(0, np.float32)
        self._silent = 0
        self._last = np.float32(0)

    def speech(self, samples: Float) -> Float:
        """What is to be heard of the passage's next samples: all but a silent beginning."""
        if self._leading:
            samples = self._from_start(samples)
        if len(samples):
            self._last = samples[-1]
            loud = np.flatnonzero(self._peaks(samples) > FAINT)
            silent = len(samples) - (int(loud[-1]) + 1) * self.block if len(loud) else len(samples)
            self._silent = silent if len(loud) else self._silent + silent
        return samples

    def pause(self, samples: int) -> Float:
        """So much silence less what the passage ended with; speech that was cut off is let down to it."""
        rest = np.zeros(max(0, samples - self._silent), np.float32)
        fall = rest[: self.block]
        fall += self._last * (1 - self._ramp[: len(fall)])
        return rest

    def fade_out(self, samples: Float) -> Float:
        """The last samples of speech that has nothing behind it."""
        if not self._shapes:
            return samples
        end = samples[-self.block :]
        return np.concatenate((samples[: len(samples) - len(end)], end * self._ramp[: len(end)][::-1]))

    def _from_start(self, samples: Float) -> Float:
        head = np.concatenate((self._head, samples))
        peaks = self._peaks(head)
        audible = np.flatnonzero(peaks > AUDIBLE)
        if not len(audible):
            self._head = head[-FAINT_BLOCKS * self.block :]
            return head[:0]
        start = max(0, int((peaks > FAINT).argmax()) - SILENT_BLOCKS, int(audible[0]) - FAINT_BLOCKS) * self.block
        self._leading = False
        speech: Float = head[start:].copy()
        speech[: self.block // 2] *= self._ramp[: 2 * (self.block // 2) : 2]
        return speech

    def _peaks(self, samples: Float) -> Float:
        whole = len(samples) // self.block * self.block
        peaks: Float = np.abs(samples[:whole]).reshape(-1, self.block).max(1)
        return peaks
