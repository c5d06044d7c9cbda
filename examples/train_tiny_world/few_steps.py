"""A few steps instead of many: the student learns to go in one step where its teacher goes in several.

Levels are fixed; from each to the next the teacher takes small Euler steps, with guidance, and the student learns the
straight line between the ends. Some of its batches stand on chunks that the student made itself: it learns to go on
from its own slips.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.schedule import Schedule, few_step_schedule
from streamsynth.models.wan.text_encoder import TextEncoder
from train_tiny_world.clips import Words, words
from train_tiny_world.flow_training import Context, FlowSettings, FlowTraining, Velocity, read_words
from train_tiny_world.latent_bank import Clips


@dataclass(frozen=True)
class FewStepSettings:
    steps: int = 4
    sampled: int = 3
    """By the package: the judge finds nothing worse than at `steps`, and a CPU has a quarter less to do."""
    shift: float = 3.0
    teacher_steps: int = 3
    """Of the teacher, for one of the student."""
    guidance: float = 2.0
    own_context: float = 0.5
    flow: FlowSettings = field(
        default_factory=lambda: FlowSettings(
            learning_rate=3e-4, silent=0.0, told_noise=0.0, untold_noise=0.05, warmup_steps=50, average_decay=0.995
        )
    )

    @property
    def shipped_schedule(self) -> Schedule:
        return step_levels(self.sampled, self.shift)

    @property
    def schedule(self) -> Schedule:
        return step_levels(self.steps, self.shift)


def step_levels(steps: int, shift: float) -> Schedule:
    """Levels as far apart as each other before the shift."""
    return few_step_schedule([round(1000 * (steps - step) / steps) for step in range(steps)], shift)


@dataclass(frozen=True)
class Networks:
    """Those that take part, of student or teacher."""

    transformer: WanTransformer
    encoder: TextEncoder

    def copy(self) -> Networks:
        return Networks(copy.deepcopy(self.transformer), copy.deepcopy(self.encoder))


class Distillation:
    """Trains the student's networks in place."""

    def __init__(
        self,
        student: Networks,
        teacher: Networks,
        settings: FewStepSettings,
        new_velocity: Callable[[WanTransformer], Velocity],
        seed: int,
    ) -> None:
        self._settings = settings
        self._teacher = new_velocity(teacher.transformer.requires_grad_(False))
        self._teacher_encoder = teacher.encoder.requires_grad_(False)
        velocity = new_velocity(student.transformer)
        self.training = FlowTraining(student.transformer, student.encoder, settings.flow, velocity)
        self._nothing = words([""], self.training.device)
        self._sigmas = torch.tensor(settings.schedule.sigmas, device=self.training.device)
        self._rng = random.Random(seed)

    def step(self, clips: Clips, progress: float) -> Tensor:
        """The mean square error of the student's lines."""
        settings, count = self._settings, self._settings.steps
        clean = self._own(clips) if self._rng.random() < settings.own_context else None
        context = self.training.conditions(clips, clean)
        places = torch.randint(count, clips.weights.shape, device=clips.latents.device)
        start, end = self._sigmas[places], self._sigmas[places + 1]
        noise = torch.randn_like(clips.latents)
        noisy = torch.lerp(clips.latents, noise, start[..., None, None, None, None])
        goal = self._teach(clips, context, noisy, start, end)
        wished = (noisy - goal) / (start - end)[..., None, None, None, None]
        flow = self.training.velocity(context, noisy, start)
        return self.training.learn(flow, wished, clips.focus, context.counts, progress)

    @torch.no_grad()
    def _own(self, clips: Clips) -> Tensor:
        """The clips' chunks as the student makes them from noise, each after the true ones before it."""
        context = self.training.conditions(clips)
        return sample(self.training.velocity, context, torch.randn_like(clips.latents), self._settings.schedule)

    @torch.no_grad()
    def _teach(self, clips: Clips, context: Context, noisy: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Where the teacher gets from `start` to `end`, over the same context, read by its own encoder."""
        settings, count = self._settings, len(noisy)
        nothing = Words(self._nothing.tokens.expand(count, 2, -1), self._nothing.lengths.expand(count, 2))
        prompted, silent = (
            replace(context, text=read_words(self._teacher_encoder, said, context.read, clips.weights))
            for said in (clips.words, nothing)
        )
        for step in range(settings.teacher_steps):
            level = torch.lerp(start, end, step / settings.teacher_steps)
            flow = self._teacher(prompted, noisy, level)
            if settings.guidance != 1:
                flow = torch.lerp(self._teacher(silent, noisy, level), flow, settings.guidance)
            noisy = noisy + flow * ((end - start) / settings.teacher_steps)[..., None, None, None, None]
        return noisy


def sample(velocity: Velocity, context: Context, noise: Tensor, schedule: Schedule) -> Tensor:
    """All chunks of the clips at once, by Euler steps."""
    for step in range(schedule.steps):
        level = torch.full_like(context.levels, schedule.sigmas[step])
        noise = noise + (schedule.sigmas[step + 1] - schedule.sigmas[step]) * velocity(context, noise, level)
    return noise
