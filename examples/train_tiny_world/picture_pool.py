"""Rendered clips on the device, each used for several steps: rendering takes longer than a step of the autoencoder."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from train_tiny_world.clips import random_script, targets
from train_tiny_world.motion import Tracks, simulate
from train_tiny_world.render import render

_CHUNKS = 2


class PicturePool:
    """`capacity` clips of 16 pictures in float16, the oldest replaced as new ones come."""

    def __init__(self, capacity: int, seed: int, device: torch.device) -> None:
        self._rng = random.Random(seed)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._held = render(self._tracks(capacity)).half()
        self._oldest = 0

    def replace(self, clips: int) -> None:
        places = (torch.arange(clips, device=self._held.device) + self._oldest) % len(self._held)
        self._held[places] = render(self._tracks(clips)).half()
        self._oldest = (self._oldest + clips) % len(self._held)

    def draw(self, clips: int) -> Tensor:
        """(clips, 16, 3, 128, 128) float32 from 0 to 1."""
        chosen = torch.randint(len(self._held), (clips,), generator=self._generator, device=self._held.device)
        return self._held[chosen].float()

    def _tracks(self, clips: int) -> Tracks:
        scripts = [random_script(_CHUNKS, self._rng) for _ in range(clips)]
        return simulate(targets(scripts, self._generator.device), self._generator)
