"""Quantiles, and the slope of a series with the bound that it stays under."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

BLOCKS = 10


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values; NaN of none."""
    return float(np.quantile(values, share)) if len(values) else math.nan


@dataclass(frozen=True, slots=True)
class Slope:
    """A least-squares slope, and the upper end of its 95% confidence interval."""

    per_unit: float
    upper_95: float


def slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Of y over x, by least squares; raises ValueError for fewer than three points.

    Memory grows in steps, so neighbouring points are not independent, and taken one by one they would promise more than
    they know: the bound is that of the line through the means of ten blocks.
    """
    if len(x) < 3 or len(x) != len(y):
        raise ValueError(f"a slope needs three points or more, x and y alike; there are {len(x)} and {len(y)}")
    xs, ys = (_block_means(np.asarray(values, float)) for values in (x, y))
    centred = xs - xs.mean()
    spread = float(centred @ centred)
    if spread == 0:
        raise ValueError("a slope needs different x")
    per_unit = float(centred @ (ys - ys.mean())) / spread
    residuals = ys - ys.mean() - per_unit * centred
    degrees = len(xs) - 2
    variance = float(residuals @ residuals) / degrees
    return Slope(per_unit, per_unit + _student_t(0.975, degrees) * math.sqrt(variance / spread))


def _block_means(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if len(values) < 2 * BLOCKS:
        return values
    return np.array([block.mean() for block in np.array_split(values, BLOCKS)])


def _student_t(share: float, degrees: float) -> float:
    """The quantile of Student's t, by the Cornish-Fisher expansion (within 1% from 4 degrees of freedom on)."""
    z = NormalDist().inv_cdf(share)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
