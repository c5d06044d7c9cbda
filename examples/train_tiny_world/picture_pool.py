"""Rendered clips on the device, each used for several steps: rendering takes longer than a step of the autoencoder."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from train_tiny_world.clips import random_script, targets
from train_tiny_world.focus import focus
from train_tiny_world.motion import Tracks, simulate
from train_tiny_world.render import render

_CHUNKS = 2


@dataclass(frozen=True)
class Pictures:
    """`pixels` (clips, 16, 3, 128, 128) from 0 to 1, and where things are, `focus` (clips, 16, 16, 16)."""

    pixels: Tensor
    focus: Tensor


class PicturePool:
    """`capacity` clips of 16 pictures in float16, the oldest replaced as new ones come."""

    def __init__(self, capacity: int, seed: int, device: torch.device) -> None:
        self._rng = random.Random(seed)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._held = self._fresh(capacity)
        self._oldest = 0

    def replace(self, clips: int) -> None:
        held, fresh = self._held, self._fresh(clips)
        places = (torch.arange(clips, device=held.focus.device) + self._oldest) % len(held.focus)
        held.pixels[places], held.focus[places] = fresh.pixels, fresh.focus
        self._oldest = (self._oldest + clips) % len(held.focus)

    def draw(self, clips: int) -> Pictures:
        """In float32."""
        held = self._held
        chosen = torch.randint(len(held.focus), (clips,), generator=self._generator, device=held.focus.device)
        return Pictures(held.pixels[chosen].float(), held.focus[chosen].float())

    def _fresh(self, clips: int) -> Pictures:
        tracks = self._tracks(clips)
        return Pictures(render(tracks).half(), focus(tracks).half())

    def _tracks(self, clips: int) -> Tracks:
        scripts = [random_script(_CHUNKS, self._rng) for _ in range(clips)]
        return simulate(targets(scripts, self._generator.device), self._generator)
