"""Clips made chunk after chunk, as the engine makes them: some steps, then one pass that is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.schedule import TRAIN_STEPS, Schedule
from streamsynth.models.wan.text_encoder import TextEncoder
from streamsynth.models.wan.tiny_vae import TinyVae
from train_tiny_world.chunked_attention import SlidingAttention
from train_tiny_world.clips import CHUNK_FRAMES, words
from train_tiny_world.networks import CONTEXT_CHUNKS

LATENT_SIZE = 16
"""Of 128 pixels."""


@dataclass(frozen=True)
class World:
    """The trained networks, and how they sample."""

    vae: TinyVae
    encoder: TextEncoder
    transformer: WanTransformer
    schedule: Schedule
    committed_level: float = 0.0
    """The noise level that a chunk is said to have when it is remembered."""

    @property
    def device(self) -> torch.device:
        return self.vae.decoder.conv_in.weight.device


@torch.no_grad()
def embed(world: World, prompts: Sequence[str]) -> Tensor:
    said = words(list(prompts), world.device)
    return world.encoder(said.tokens, said.lengths)


@torch.no_grad()
def roll_out(world: World, texts: Sequence[Tensor], seed: int) -> Tensor:
    """Latents (clips, frames, channels, height, width); `texts` are each chunk's embeddings (clips, tokens, dim)."""
    config = world.transformer.config
    attention = SlidingAttention(config.num_layers, CONTEXT_CHUNKS)
    generator = torch.Generator(world.device).manual_seed(seed)
    shape = (len(texts[0]), config.in_channels, CHUNK_FRAMES, LATENT_SIZE, LATENT_SIZE)
    made = []
    with torch.autocast(world.device.type, torch.bfloat16, enabled=world.device.type == "cuda"):
        for chunk, text in enumerate(texts):
            prompt = world.transformer.prompt_context(text)
            # Attention sees only distances: positions may grow.
            positions = torch.arange(CHUNK_FRAMES, device=world.device)[None] + chunk * CHUNK_FRAMES
            turned = world.transformer.rotary(positions, LATENT_SIZE, LATENT_SIZE)

            def flow(latents: Tensor, level: float) -> Tensor:
                told = torch.full((len(latents), 1), level * TRAIN_STEPS, device=latents.device)
                return world.transformer(latents, told, prompt, turned, attention).float()  # noqa: B023

            latents = torch.randn(shape, generator=generator, device=world.device)
            for now, then in pairwise(world.schedule.sigmas):
                latents = latents + (then - now) * flow(latents, now)
            attention.committing = True
            flow(latents, world.committed_level)
            attention.committing = False
            made.append(latents.transpose(1, 2))
    return torch.cat(made, 1)


@torch.no_grad()
def show(world: World, latents: Tensor, at_once: int = 16) -> Tensor:
    """Pictures (clips, pictures, 3, 128, 128) from 0 to 1."""
    parts = []
    for some in latents.split(at_once):
        pictures = world.vae.decode_clip(some.transpose(1, 2))
        parts.append(pictures.transpose(1, 2).add(1).div(2).clamp(0, 1))
    return torch.cat(parts)
