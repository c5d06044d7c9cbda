"""Flow matching: which noise levels a sample goes through, and the steps between them. Pure functions.

A sample at level sigma is (1 - sigma) * clean + sigma * noise, and a model says its flow, noise - clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from streamsynth.errors import invalid_value

TRAIN_STEPS = 1000
"""Time steps are noise levels times this."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Noise levels from high to low, one more than there are steps (the last is where the last step ends), and the time
    step that the model is told at each step."""

    sigmas: tuple[float, ...]
    timesteps: tuple[float, ...]

    @classmethod
    def of_levels(cls, sigmas: Sequence[float]) -> Schedule:
        """The model is told each level as it is."""
        return cls(tuple(sigmas), tuple(sigma * TRAIN_STEPS for sigma in sigmas[:-1]))

    @property
    def steps(self) -> int:
        return len(self.timesteps)


def shifted(sigma: float, shift: float) -> float:
    """More of the steps at high noise, for shifts above 1: larger pictures need it."""
    return shift * sigma / (1.0 + (shift - 1.0) * sigma)


def euler_schedule(steps: int, shift: float) -> Schedule:
    """As diffusers' `FlowMatchEulerDiscreteScheduler`, whose lowest level is itself shifted once before."""
    _check(steps, shift)
    lowest = shifted(1.0 / TRAIN_STEPS, shift)
    sigmas = [shifted(sigma, shift) for sigma in np.linspace(1.0, lowest, steps).tolist()]
    return Schedule.of_levels((*sigmas, 0.0))


def unipc_schedule(steps: int, shift: float) -> Schedule:
    """As diffusers' `UniPCMultistepScheduler` with flow sigmas, which Wan's pipelines use; time steps are whole."""
    _check(steps, shift)
    levels = np.linspace(1.0, 1.0 / TRAIN_STEPS, steps + 1)[:-1]
    sigmas = [shifted(sigma, shift) for sigma in levels.tolist()]
    sigmas[0] -= 1e-6  # At a level of 1 there would be no signal, and its logarithm no number.
    return Schedule((*sigmas, 0.0), tuple(float(int(sigma * TRAIN_STEPS)) for sigma in sigmas))


def few_step_schedule(denoising_step_list: Sequence[int], shift: float, *, warp: bool = True) -> Schedule:
    """The few levels that a distilled model was trained on, such as Self-Forcing's (1000, 750, 500, 250).

    `warp` shifts them, as `warp_denoising_step` in its configuration says; a final 0 there is where sampling ends.
    """
    listed = [step for step in denoising_step_list if step != 0]
    _check(len(listed), shift)
    if any(not 0 < step <= TRAIN_STEPS for step in listed) or sorted(listed, reverse=True) != listed:
        raise invalid_value("denoising_step_list", list(denoising_step_list), f"falling, from at most {TRAIN_STEPS}")
    sigmas = [shifted(step / TRAIN_STEPS, shift) if warp else step / TRAIN_STEPS for step in listed]
    return Schedule.of_levels((*sigmas, 0.0))


def _check(steps: int, shift: float) -> None:
    if steps < 1:
        raise invalid_value("steps", steps, "at least 1")
    if not shift > 0:
        raise invalid_value("shift", shift, "above 0")


def clean_of(sample: Tensor, flow: Tensor, sigma: float | Tensor) -> Tensor:
    """What the model takes the clean sample to be; a tensor `sigma` must broadcast over the sample."""
    return sample - sigma * flow


def with_noise(clean: Tensor, noise: Tensor, sigma: float | Tensor) -> Tensor:
    """A clean sample at a noise level. A few-step model goes on from here with fresh noise at its next level."""
    return (1.0 - sigma) * clean + sigma * noise


def euler_step(sample: Tensor, flow: Tensor, schedule: Schedule, step: int) -> Tensor:
    """From one level to the next along the flow."""
    return sample + (schedule.sigmas[step + 1] - schedule.sigmas[step]) * flow


def guided(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: away from what the model would do without the prompt."""
    return torch.lerp(unconditional, conditional, scale)
