"""Quantiles, and the slope of a series with the bound that it stays under."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values; NaN of none."""
    return float(np.quantile(values, share)) if len(values) else math.nan


@dataclass(frozen=True, slots=True)
class Slope:
    """A least-squares slope, and the upper end of its 95% confidence interval."""

    per_unit: float
    upper_95: float


def slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Of y over x, by ordinary least squares; raises ValueError for fewer than three points.

    Neighbouring residuals of a memory series are alike, which makes the interval look narrower than it is: successive
    residuals' correlation is estimated, and the number of independent points reduced accordingly.
    """
    if len(x) < 3 or len(x) != len(y):
        raise ValueError(f"a slope needs three points or more, x and y alike; there are {len(x)} and {len(y)}")
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    centred = xs - xs.mean()
    spread = float(centred @ centred)
    if spread == 0:
        raise ValueError("a slope needs different x")
    per_unit = float(centred @ (ys - ys.mean())) / spread
    residuals = ys - ys.mean() - per_unit * centred
    degrees = _independent(residuals) - 2
    if degrees <= 0:
        return Slope(per_unit, math.inf)
    variance = float(residuals @ residuals) / degrees
    return Slope(per_unit, per_unit + _student_t(0.975, degrees) * math.sqrt(variance / spread))


def _independent(residuals: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """How many independent points the residuals are worth, for a first-order autocorrelation."""
    energy = float(residuals @ residuals)
    correlation = float(residuals[1:] @ residuals[:-1]) / energy if energy else 0.0
    correlation = min(max(correlation, 0.0), 0.99)
    return len(residuals) * (1 - correlation) / (1 + correlation)


def _student_t(share: float, degrees: float) -> float:
    """The quantile of Student's t, by the Cornish-Fisher expansion (within 1% from 3 degrees of freedom on)."""
    z = NormalDist().inv_cdf(share)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
