"""When a pass through the blocks may be left out: MagCache and TeaCache. Pure: numbers in, a decision out.

MagCache (Ma et al., 2025): by magnitude ratios of successive residuals, measured once for a model. TeaCache (Liu et
al., 2024): by how far the time embedding has moved since the last pass, through a polynomial fitted to the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value


class SkipRun(Protocol):
    """The decisions for one pass of each step of one request, in their order."""

    def skips(self, change: float | None) -> bool:
        """Whether the next pass is left out. `change`: of the signal since the last pass, relative; None at first."""


class SkipPolicy(Protocol):
    """`needs_change`: whether decisions look at the signal, which costs a wait for the device."""

    needs_change: bool

    def run(self, steps: int) -> SkipRun: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MagCache:
    """`mag_ratios`, one a step; for another number of steps, the nearest in time. No pass is left out in the first
    `retention_ratio` of the steps, nor more than `max_skip_steps` in a row."""

    mag_ratios: Sequence[float]
    threshold: float = 0.24
    max_skip_steps: int = 5
    retention_ratio: float = 0.2
    needs_change = False

    def __post_init__(self) -> None:
        if not self.mag_ratios or not all(_is_number(ratio) and ratio > 0 for ratio in self.mag_ratios):
            raise invalid_value("mag_ratios", self.mag_ratios, "the model's own: a list of numbers above 0")
        _check_number("threshold", self.threshold, above=0)
        _check_number("retention_ratio", self.retention_ratio, above=-1, most=1)
        if type(self.max_skip_steps) is not int or self.max_skip_steps < 1:
            raise invalid_value("max_skip_steps", self.max_skip_steps, "a whole number, 1 or more")

    def run(self, steps: int) -> SkipRun:
        return _MagRun(self, steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class TeaCache:
    """A pass is left out while changes, each through the polynomial (highest power first), add up to less than
    `threshold`. The first and the last are made."""

    threshold: float = 0.1
    coefficients: Sequence[float] = (1.0, 0.0)
    needs_change = True

    def __post_init__(self) -> None:
        _check_number("threshold", self.threshold, above=0)
        if not self.coefficients or not all(map(_is_number, self.coefficients)):
            raise invalid_value("coefficients", self.coefficients, "a list of numbers")

    def run(self, steps: int) -> SkipRun:
        return _TeaRun(self, steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measuring:
    """Nothing is left out: for the ratios that MagCache needs."""

    needs_change = False

    def run(self, steps: int) -> SkipRun:
        return _Never()


_METHODS: Mapping[str, type[MagCache] | type[TeaCache] | type[Measuring]] = {
    "magcache": MagCache,
    "teacache": TeaCache,
    "measure": Measuring,
}


def parse_policy(given: Mapping[str, Any]) -> SkipPolicy | None:
    """Of the option `step_skipping`, a `method` and its settings; empty: nothing is skipped."""
    if not given:
        return None
    settings = dict(given)
    method = settings.pop("method", None)
    if method not in _METHODS:
        raise invalid_value("step_skipping.method", method, "one of " + ", ".join(_METHODS))
    kind = _METHODS[method]
    known = [field.name for field in fields(kind)]
    for name in settings:
        if name not in known:
            message = f"{method} has no setting {name!r}; its settings: {', '.join(known)}"
            raise StreamSynthError(ErrorCode.UNKNOWN_FIELD, message, param=f"step_skipping.{name}")
    if kind is MagCache and "mag_ratios" not in settings:
        raise StreamSynthError(ErrorCode.MISSING_FIELD, "magcache needs mag_ratios", param="step_skipping.mag_ratios")
    return kind(**settings)


class _Never:
    def skips(self, change: float | None) -> bool:
        return False


class _MagRun:
    def __init__(self, settings: MagCache, steps: int) -> None:
        self._settings = settings
        self._ratios = _nearest(settings.mag_ratios, steps)
        self._first = int(settings.retention_ratio * steps + 0.5)
        self._step = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._ratio, self._error, self._skipped = 1.0, 0.0, 0

    def skips(self, change: float | None) -> bool:
        step, self._step = self._step, self._step + 1
        if step == 0 or step < self._first:
            return False
        self._ratio *= self._ratios[min(step, len(self._ratios) - 1)]
        self._error += abs(1.0 - self._ratio)
        self._skipped += 1
        if self._error <= self._settings.threshold and self._skipped <= self._settings.max_skip_steps:
            return True
        self._begin_anew()
        return False


class _TeaRun:
    def __init__(self, settings: TeaCache, steps: int) -> None:
        self._settings = settings
        self._last = steps - 1
        self._step = 0
        self._moved = 0.0

    def skips(self, change: float | None) -> bool:
        step, self._step = self._step, self._step + 1
        if step == 0 or step >= self._last or change is None:
            self._moved = 0.0
            return False
        value = 0.0
        for coefficient in self._settings.coefficients:
            value = value * change + coefficient
        self._moved += abs(value)
        if self._moved < self._settings.threshold:
            return True
        self._moved = 0.0
        return False


def _nearest(ratios: Sequence[float], steps: int) -> list[float]:
    """Stretched or shrunk to so many steps."""
    if steps <= 1 or len(ratios) == 1:
        return [ratios[-1]] * max(1, steps)
    scale = (len(ratios) - 1) / (steps - 1)
    return [ratios[round(step * scale)] for step in range(steps)]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_number(name: str, value: object, *, above: float, most: float = math.inf) -> None:
    if not _is_number(value) or not above < value <= most:  # type: ignore[operator]  # a number by now
        raise invalid_value(
            name, value, f"a number above {above:g}" + (f", {most:g} at most" if most < math.inf else "")
        )
