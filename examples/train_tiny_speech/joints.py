"""How a voice goes on where two pieces of speech meet: the steps of its pitch and of its level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from train_tiny_speech.sound_quality import Audio, voiced_frames

_NEAR = 40
"""How many voiced 10 ms frames on each side of a joint are compared."""

Steps = NDArray[np.float64]


@dataclass(frozen=True)
class JointSteps:
    """Mean step and mean size of a step over the joints, and how far steps are from those of another reading."""

    joints: int
    pitch: float
    pitch_size: float
    pitch_apart: float
    level: float
    level_size: float
    level_apart: float

    def __str__(self) -> str:
        return (
            f"{self.joints} joints; "
            f"pitch {self.pitch:+.2f} st (size {self.pitch_size:.2f}, apart {self.pitch_apart:.2f}), "
            f"level {self.level:+.2f} dB (size {self.level_size:.2f}, apart {self.level_apart:.2f})"
        )


def steps(pieces: Sequence[Audio]) -> Steps:
    """[joints, 2]: semitones and decibels from the end of a piece to the start of the next."""
    found = [_step(before, behind) for before, behind in pairwise(pieces)]
    return np.array(found).reshape(-1, 2)


def compare(texts: Sequence[Steps], reading: Sequence[Steps]) -> JointSteps:
    """Joints where either of the two has no voice are left out."""
    ours, theirs = np.concatenate(texts), np.concatenate(reading)
    known = np.isfinite(ours).all(1) & np.isfinite(theirs).all(1)
    ours, theirs = ours[known], theirs[known]
    (pitch, level), sizes, apart = ours.mean(0), np.abs(ours).mean(0), np.abs(ours - theirs).mean(0)
    return JointSteps(int(known.sum()), pitch, sizes[0], apart[0], level, sizes[1], apart[1])


def _step(before: Audio, behind: Audio) -> tuple[float, float]:
    (pitch, level), (next_pitch, next_level) = voiced_frames(before), voiced_frames(behind)
    if not len(pitch) or not len(next_pitch):
        return float("nan"), float("nan")
    return (
        float(12 * np.log2(np.median(next_pitch[:_NEAR]) / np.median(pitch[-_NEAR:]))),
        float(next_level[:_NEAR].mean() - level[-_NEAR:].mean()),
    )
