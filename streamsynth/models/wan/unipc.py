"""UniPC: a multistep solver that predicts the next sample and then corrects it (Zhao et al. 2023, B(h) = e^h - 1).

Follows diffusers' `UniPCMultistepScheduler` as Wan's pipelines configure it: it predicts clean samples ("bh2"), and
lowers its order at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from streamsynth.errors import invalid_value
from streamsynth.models.wan.schedule import Schedule, clean_of


@dataclass(frozen=True, slots=True)
class UniPcHistory:
    """What a step leaves to the next: the clean samples predicted so far, latest last, the sample that the last step
    started from, and the order it had."""

    cleans: tuple[Tensor, ...]
    sample: Tensor
    order: int


@dataclass(frozen=True, slots=True)
class _Level:
    """A noise level in the terms of the solver: signal, noise, and half the log of their ratio squared."""

    alpha: float
    sigma: float
    half_log_ratio: float

    @classmethod
    def at(cls, sigma: float) -> _Level:
        # In float32 as in the reference: near a level of 1 the rounding decides how far apart levels are.
        noise = np.float32(sigma)
        signal = np.float32(1.0) - noise
        ratio = math.inf if noise == 0 else math.log(signal) - math.log(noise)
        return cls(float(signal), float(noise), ratio)


def unipc_step(
    sample: Tensor, flow: Tensor, schedule: Schedule, step: int, history: UniPcHistory | None, *, order: int = 2
) -> tuple[Tensor, UniPcHistory]:
    """The sample at the next level, and what the next step needs; `history` is None at step 0.

    The flow is the model's at `sample`, which the correction then replaces.
    """
    if (history is None) != (step == 0):
        raise invalid_value("history", history, "None exactly at step 0")
    clean = clean_of(sample, flow, schedule.sigmas[step])
    cleans: tuple[Tensor, ...] = (clean,)
    if history is not None:
        sample = _corrected(history, clean, schedule, step)
        cleans = (*history.cleans[-(order - 1) :], clean) if order > 1 else cleans
    used = min(order, schedule.steps - step, step + 1)
    return _predicted(sample, cleans, schedule, step, used), UniPcHistory(cleans, sample, used)


def _predicted(sample: Tensor, cleans: tuple[Tensor, ...], schedule: Schedule, step: int, order: int) -> Tensor:
    solver = _Solver.between(schedule, step, order)
    differences = solver.differences(cleans)
    weights = [0.5] if order == 2 else solver.weights(order - 1)
    return solver.moved(sample, cleans[-1], zip(weights, differences, strict=True))


def _corrected(history: UniPcHistory, clean: Tensor, schedule: Schedule, step: int) -> Tensor:
    """The last step again, now that the model has been asked where it led."""
    order = history.order
    solver = _Solver.between(schedule, step - 1, order)
    differences = [*solver.differences(history.cleans), clean - history.cleans[-1]]
    weights = [0.5] if order == 1 else solver.weights(order)
    return solver.moved(history.sample, history.cleans[-1], zip(weights, differences, strict=True))


@dataclass(frozen=True, slots=True)
class _Solver:
    """One step of some order. `ratios` say where earlier predictions lie, in lengths of the step; 1 is its end."""

    start: _Level
    end: _Level
    length: float
    ratios: tuple[float, ...]

    @classmethod
    def between(cls, schedule: Schedule, step: int, order: int) -> _Solver:
        start, end = _Level.at(schedule.sigmas[step]), _Level.at(schedule.sigmas[step + 1])
        length = end.half_log_ratio - start.half_log_ratio
        earlier = (_Level.at(schedule.sigmas[step - back]) for back in range(1, order))
        ratios = tuple((level.half_log_ratio - start.half_log_ratio) / length for level in earlier)
        return cls(start, end, length, (*ratios, 1.0))

    @property
    def growth(self) -> float:
        return math.expm1(-self.length)

    def differences(self, cleans: tuple[Tensor, ...]) -> list[Tensor]:
        """Of each earlier prediction from the latest, by the distance between them."""
        return [(cleans[-2 - back] - cleans[-1]) / ratio for back, ratio in enumerate(self.ratios[:-1])]

    def weights(self, count: int) -> list[float]:
        """That make the first `count` terms of the expansion exact."""
        if count == 0:
            return []
        rows, targets = [], []
        term, factorial = self.growth / -self.length - 1.0, 1
        for power in range(count):
            rows.append([ratio**power for ratio in self.ratios[:count]])
            targets.append(term * factorial / self.growth)
            factorial *= power + 2
            term = term / -self.length - 1.0 / factorial
        return [float(weight) for weight in np.linalg.solve(np.array(rows), np.array(targets))]

    def moved(self, sample: Tensor, clean: Tensor, terms: zip[tuple[float, Tensor]]) -> Tensor:
        kept = self.end.sigma / self.start.sigma * sample - self.end.alpha * self.growth * clean
        for weight, difference in terms:
            kept = kept - self.end.alpha * self.growth * weight * difference
        return kept
