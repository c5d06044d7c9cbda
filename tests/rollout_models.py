"""A small random video model for tests of the rollout engine: the Wan transformer, and a decoder with a memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from streamsynth.engine.rollout.clock import PictureClock
from streamsynth.engine.rollout.model import SelfAttention
from streamsynth.engine.rollout.window import WindowPolicy
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.model import PromptContext, WanTransformer
from streamsynth.models.wan.rotary import Rotary
from streamsynth.video import Size

CONFIG = WanConfig(
    num_attention_heads=2,
    attention_head_dim=12,
    in_channels=4,
    out_channels=4,
    text_dim=16,
    freq_dim=16,
    ffn_dim=32,
    num_layers=2,
)
STRIDE = 8
"""Pixels of a picture to a pixel of its latent frame."""


class RenoisingSteps:
    """Three steps, each to a guess of the clean latents, and from there to less noise."""

    timesteps = (1000.0, 750.0, 500.0)

    def advance(self, latents: Tensor, flow: Tensor, step: int, noise: Tensor | None) -> Tensor:
        clean = latents - self.timesteps[step] / 1000 * flow
        if noise is None:
            return clean
        sigma = self.timesteps[step + 1] / 1000
        return (1 - sigma) * clean + sigma * noise

    def needs_noise(self, step: int) -> bool:
        return step + 1 < len(self.timesteps)


class SmallVideoModel:
    """`fail_at_pass`: the forward pass, counted from 0, that raises."""

    layers, heads, head_dim = CONFIG.num_layers, CONFIG.num_attention_heads, CONFIG.attention_head_dim
    fps = 16

    def __init__(self, *, sink: int = 2, frames: int = 8, chunk: int = 2, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.transformer = WanTransformer(CONFIG).eval().requires_grad_(False)
        for weight in self.transformer.parameters():
            weight.copy_(torch.randn_like(weight) * (0.5 if weight.dim() == 1 else 1.2 / weight.shape[-1] ** 0.5))
        self.window = WindowPolicy(frames=frames, sink=sink, chunk=chunk)
        self.clock = PictureClock(chunk=chunk, stride=2, first=1)
        self.denoiser = RenoisingSteps()
        self.like = torch.empty(0)
        self.passes = 0
        self.rows: list[int] = []
        self.fail_at_pass: int | None = None

    def latent_shape(self, width: int, height: int) -> tuple[int, int, int]:
        if width % (2 * STRIDE) or height % (2 * STRIDE):
            raise StreamSynthError(ErrorCode.INVALID_VALUE, f"a size of {width}x{height}", param="width")
        return CONFIG.in_channels, height // STRIDE, width // STRIDE

    def frame_tokens(self, width: int, height: int) -> int:
        _, high, wide = self.latent_shape(width, height)
        return CONFIG.frame_tokens(high, wide)

    def in_full(self, prompt: str, before: str | None, seed: int) -> str:
        return prompt

    def embed(self, prompt: str) -> Tensor:
        if prompt == "refuse":
            raise StreamSynthError(ErrorCode.INVALID_VALUE, "a prompt that the model cannot take", param="prompt")
        seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "little")
        return torch.randn(1, 5, CONFIG.text_dim, generator=torch.Generator().manual_seed(seed))

    def condition(self, embedding: Tensor) -> PromptContext:
        return self.transformer.prompt_context(embedding)

    def stack(self, conditionings: Sequence[PromptContext]) -> PromptContext:
        return PromptContext.stack(conditionings)

    def rotary(self, positions: Tensor, latent_height: int, latent_width: int) -> Rotary:
        return self.transformer.rotary(positions, latent_height, latent_width)

    def flow(
        self, latents: Tensor, timesteps: Tensor, conditioning: PromptContext, rotary: Any, attention: SelfAttention
    ) -> Tensor:
        if self.passes == self.fail_at_pass:
            raise RuntimeError("told to fail")
        self.passes += 1
        self.rows.append(len(latents))
        return self.transformer(latents, timesteps, conditioning, rotary, attention)

    def capture_decoder(self, sizes: Sequence[Size], *, max_rows: int) -> None: ...

    def open_decoder(self) -> list[Tensor]:
        return []

    def decode(self, latents: Tensor, states: Sequence[list[Tensor]]) -> list[Tensor]:
        """Two pictures of each latent frame: the mean of all so far, which the first one lacks, and the frame."""
        made = []
        for row, state in zip(latents, states, strict=True):
            pictures = []
            for frame in row.unbind(1):
                first = not state
                state.append(frame)
                both = [torch.stack(state).mean(0), frame][int(first) :]
                pictures += [picture[:3].repeat_interleave(STRIDE, 1).repeat_interleave(STRIDE, 2) for picture in both]
            made.append((torch.stack(pictures).permute(0, 2, 3, 1).sigmoid() * 255).round().to(torch.uint8))
        return made
