"""Rendered and encoded clips, kept on the device and slowly replaced: rendering costs less than a training step."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from streamsynth.models.wan.tiny_vae import TinyVae
from train_tiny_world.clips import CHUNK_FRAMES, CHUNK_PICTURES, PICTURES, Words, random_script, targets, words
from train_tiny_world.focus import focus
from train_tiny_world.motion import simulate
from train_tiny_world.networks import encode_pictures
from train_tiny_world.render import render

_RENDERED_AT_ONCE = 64


@dataclass(frozen=True)
class Clips:
    """`latents` (clips, chunks, channels, frames, height, width); two prompts each, beside each other in `words`
    (clips, 2, ...); `weights` (clips, chunks) of the second prompt; `switch` (clips,), its first chunk; `focus` (clips,
    chunks, frames, height, width), from 0 to 1, where the things are.
    """

    latents: Tensor
    words: Words
    weights: Tensor
    switch: Tensor
    focus: Tensor


@torch.no_grad()
def make_clips(vae: TinyVae, clips: int, chunks: int, rng: random.Random, generator: torch.Generator) -> Clips:
    device = generator.device
    scripts = [random_script(chunks, rng) for _ in range(clips)]
    tracks = simulate(targets(scripts, device), generator)
    parts = []
    for start in range(0, clips, _RENDERED_AT_ONCE):
        pictures = render(tracks.clips(slice(start, start + _RENDERED_AT_ONCE)))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            parts.append(encode_pictures(vae, pictures).float())
    latents = torch.cat(parts).unflatten(1, (chunks, CHUNK_FRAMES)).transpose(2, 3)
    said = words([prompt for script in scripts for prompt in script.prompts], device)
    paired = Words(said.tokens.unflatten(0, (-1, 2)), said.lengths.unflatten(0, (-1, 2)))
    weights = torch.tensor([script.weights for script in scripts], device=device)
    switch = torch.tensor([script.switch for script in scripts], device=device)
    things = focus(tracks).unflatten(1, (chunks, CHUNK_FRAMES, PICTURES)).amax(3)
    return Clips(latents.contiguous(), paired, weights, switch, things)


class LatentBank:
    """`capacity` clips of `chunks` chunks. Latents are float16."""

    def __init__(self, vae: TinyVae, capacity: int, chunks: int, seed: int, device: torch.device) -> None:
        self._vae, self._chunks, self._capacity = vae, chunks, capacity
        self._rng = random.Random(seed)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._oldest = 0
        self._held: Clips | None = None
        self.filled = 0

    @property
    def pictures(self) -> int:
        """How many pictures a clip has."""
        return self._chunks * CHUNK_PICTURES

    def add(self, clips: int) -> None:
        """Render so many, in the place of the oldest where the bank is full."""
        fresh = make_clips(self._vae, clips, self._chunks, self._rng, self._generator)
        if self._held is None:
            self._held = Clips(
                *(
                    Words(*(_room(each, self._capacity) for each in (part.tokens, part.lengths)))
                    if isinstance(part, Words)
                    else _room(part.half() if part.is_floating_point() else part, self._capacity)
                    for part in (fresh.latents, fresh.words, fresh.weights, fresh.switch, fresh.focus)
                )
            )
        places = (torch.arange(clips, device=fresh.switch.device) + self._oldest) % self._capacity
        held = self._held
        for room, part in zip(_tensors(held), _tensors(fresh), strict=True):
            room[places] = part.to(room.dtype)
        self._oldest = (self._oldest + clips) % self._capacity
        self.filled = min(self._capacity, self.filled + clips)

    def save(self, file: Path) -> None:
        if self._held is not None:
            torch.save({"held": _tensors(self._held), "filled": self.filled}, file)

    def load(self, file: Path) -> None:
        """What another call rendered."""
        kept = torch.load(file, map_location=self._generator.device, weights_only=True)
        latents, tokens, lengths, *rest = kept["held"]
        self._held, self.filled = Clips(latents, Words(tokens, lengths), *rest), kept["filled"]
        self._oldest = self.filled % self._capacity

    def draw(self, clips: int) -> Clips:
        if self._held is None:
            raise ValueError("the bank is empty: add clips first")
        held = self._held
        chosen = torch.randint(self.filled, (clips,), generator=self._generator, device=held.switch.device)
        return Clips(
            held.latents[chosen].float(),
            held.words[chosen],
            held.weights[chosen].float(),
            held.switch[chosen],
            held.focus[chosen].float(),
        )


def _tensors(clips: Clips) -> tuple[Tensor, ...]:
    return clips.latents, clips.words.tokens, clips.words.lengths, clips.weights, clips.switch, clips.focus


def _room(like: Tensor, capacity: int) -> Tensor:
    return like.new_zeros(capacity, *like.shape[1:])
