"""How the things of the world move, frame by frame. State goes on across changes: nothing jumps, it glides over."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES, MOTIONS

FRAME_RATE = 16
SIZE = 128
THINGS = 3
WRAP = SIZE + 28
"""A thing that leaves at one side comes back at the other: positions are the same modulo this."""

_LEFT, _RIGHT, _BOUNCING, _ORBITING, _GROWING = range(len(MOTIONS))
_LANES = (62.0, 34.0, 90.0)
_SLOTS = (0.0, -40.0, 40.0)
_GROUND = 98.0
_SIZES = (1.0, 0.86, 0.74)


@dataclass(frozen=True)
class Tracks:
    """What a frame shows, all (clips, frames, ...) float32: things first, then mixtures that sum to 1."""

    x: Tensor
    y: Tensor
    radius: Tensor
    angle: Tensor
    presence: Tensor
    colour: Tensor
    shape: Tensor
    background: Tensor
    time: Tensor
    weather: Tensor
    seconds: Tensor
    """(clips, frames): the world's clock."""
    character: Tensor
    """(clips, 8), from 0 to 1: what makes one meadow differ from the next."""

    def clips(self, chosen: slice) -> Tracks:
        return Tracks(**{part.name: getattr(self, part.name)[chosen] for part in fields(self)})

    def frames(self, chosen: slice) -> Tracks:
        kept = {part.name: getattr(self, part.name)[:, chosen] for part in fields(self) if part.name != "character"}
        return Tracks(character=self.character, **kept)


@dataclass(frozen=True)
class _Habits:
    """Drawn once for each clip, (clips, 1): speeds, phases and places."""

    speed: Tensor
    orbit: Tensor
    bounce: Tensor
    leap: Tensor
    growth: Tensor
    radius: Tensor
    centre: Tensor
    start: Tensor
    phase: Tensor


def _habits(clips: int, generator: torch.Generator) -> _Habits:
    device = generator.device

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(clips, 1, generator=generator, device=device)

    direction = torch.where(between(0, 1) < 0.5, -1.0, 1.0)
    return _Habits(
        speed=between(40, 54),
        orbit=between(2.2, 2.8) * direction,
        bounce=1 / between(0.95, 1.15),
        leap=between(42, 52),
        growth=1 / between(2.2, 2.8),
        radius=between(17, 20),
        centre=between(57, 71),
        start=between(0, WRAP),
        phase=between(0, 1),
    )


_RATES = {"colour": 0.4, "shape": 0.4, "background": 0.22, "time": 0.22, "weather": 0.22}
"""The share of what is still missing that a mixture makes up in a frame."""


def simulate(targets: dict[str, Tensor], generator: torch.Generator) -> Tracks:
    """`targets`: for each attribute the wished mixture, (clips, frames, values). Count and motion are what weighs most.

    The same targets and generator state give the same tracks, and a longer timeline begins with the shorter one's.
    """
    counts, motions = targets["count"].argmax(-1), targets["motion"].argmax(-1)
    clips, frames = counts.shape
    habits = _habits(clips, generator)
    character = torch.rand(clips, 8, generator=generator, device=generator.device)
    clock = 20 * torch.rand(clips, 1, generator=generator, device=generator.device)
    things = _Things(habits, counts[:, 0], motions[:, 0])
    moves = [things.step(counts[:, frame], motions[:, frame]) for frame in range(frames)]
    x, y, radius, angle, presence = (torch.stack(parts, 1) for parts in zip(*moves, strict=True))
    mixtures = {name: _smoothed(targets[name], rate) for name, rate in _RATES.items()}
    seconds = clock + torch.arange(frames, device=clock.device) / FRAME_RATE
    return Tracks(x, y, radius, angle, presence, seconds=seconds, character=character, **mixtures)


def _smoothed(wished: Tensor, rate: float) -> Tensor:
    held = wished[:, 0]
    out = []
    for frame in range(wished.shape[1]):
        held = held + (wished[:, frame] - held) * rate
        out.append(held)
    return torch.stack(out, 1)


class _Things:
    """Three things a clip, of which `count` are present."""

    def __init__(self, habits: _Habits, count: Tensor, motion: Tensor) -> None:
        device = habits.speed.device
        self._habits = habits
        self._order = torch.arange(THINGS, device=device)
        self._lanes, self._slots, self._sizes = (torch.tensor(v, device=device) for v in (_LANES, _SLOTS, _SIZES))
        self._elapsed = 0.0
        self._motion = motion
        self._lateral = (habits.start + self._order * (WRAP / THINGS)) % WRAP
        target_x, target_y = self._target(motion)
        self._x, self._y = target_x, target_y
        self._gap_x, self._gap_y = torch.zeros_like(target_x), torch.zeros_like(target_y)
        self._presence = (self._order <= count[:, None]).float()
        self._radius = self._wished_radius(count, motion)

    def step(self, count: Tensor, motion: Tensor) -> tuple[Tensor, ...]:
        """x, y, radius, angle and presence of this frame, each (clips, things)."""
        self._elapsed += 1 / FRAME_RATE
        changed = (motion != self._motion)[:, None]
        self._motion = motion
        sideways = (motion == _RIGHT).float() - (motion == _LEFT).float()
        start = torch.where(changed, self._x, self._lateral)
        self._lateral = (start + sideways[:, None] * self._habits.speed / FRAME_RATE) % WRAP
        target_x, target_y = self._target(motion)
        self._gap_x = torch.where(changed, _nearest(self._x - target_x), self._gap_x) * 0.84
        self._gap_y = torch.where(changed, self._y - target_y, self._gap_y) * 0.84
        self._x, self._y = (target_x + self._gap_x) % WRAP, target_y + self._gap_y
        self._presence = self._presence + ((self._order <= count[:, None]).float() - self._presence) * 0.35
        self._radius = self._radius + (self._wished_radius(count, motion) - self._radius) * 0.5
        angle = 0.22 * torch.sin(2.1 * self._elapsed + 2 * math.pi * self._habits.phase + self._order)
        return self._x, self._y, self._radius * self._presence, angle, self._presence

    def _target(self, motion: Tensor) -> tuple[Tensor, Tensor]:
        habits = self._habits
        turn = habits.orbit * self._elapsed + 2 * math.pi * (habits.phase + self._order / THINGS)
        hop = (habits.bounce * self._elapsed + habits.phase + 0.31 * self._order) % 1
        slots = habits.centre + self._slots
        middle = torch.full_like(slots, 60.0)
        ground = _GROUND - habits.radius
        sideways = (self._lateral, self._lanes.expand_as(slots))
        xs = [sideways[0], sideways[0], slots, 64 + 30 * turn.cos(), slots]
        ys = [sideways[1], sideways[1], ground - habits.leap * (1 - (2 * hop - 1) ** 2), 60 + 30 * turn.sin(), middle]
        chosen = motion[:, None, None].expand(-1, THINGS, 1)
        return (torch.stack(each, -1).gather(-1, chosen)[..., 0] for each in (xs, ys))  # type: ignore[return-value]

    def _wished_radius(self, count: Tensor, motion: Tensor) -> Tensor:
        base = self._habits.radius * self._sizes[count][:, None]
        cycle = (self._habits.growth * self._elapsed + self._habits.phase) % 1
        grown = torch.where(cycle < 0.85, cycle / 0.85, (1 - cycle) / 0.15)
        factor = torch.where((motion == _GROWING)[:, None], 0.55 + 0.65 * grown, 1.0)
        return (base * factor).expand(-1, THINGS)


def _nearest(gap: Tensor) -> Tensor:
    """The way round the screen that is shorter."""
    return (gap + WRAP / 2) % WRAP - WRAP / 2


def one_hot_targets(labels: Tensor) -> dict[str, Tensor]:
    """(clips, frames, attributes) int64 labels to the targets of `simulate`."""
    return {
        name: torch.nn.functional.one_hot(labels[..., index], len(values)).float()
        for index, (name, values) in enumerate(ATTRIBUTES.items())
    }
