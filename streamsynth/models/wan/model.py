"""The Wan transformer: noisy latents and time steps to flow, whole clips or chunk by chunk.

Follows diffusers' `WanTransformer3DModel`. Time steps may differ from frame to frame (diffusion forcing, and the causal
models that came of it), and self-attention is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.errors import invalid_value
from streamsynth.models.wan.attention import SelfAttention
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.modules import Block, LayerContext, modulated
from streamsynth.models.wan.rotary import Rotary, rotary


@dataclass(frozen=True, slots=True)
class PromptContext:
    """The keys and values that a prompt is to every layer: made once, read by every pass."""

    layers: tuple[LayerContext, ...]

    @property
    def tensors(self) -> list[Tensor]:
        parts = ((each.keys, each.values, each.image_keys, each.image_values) for each in self.layers)
        return [tensor for layer in parts for tensor in layer if tensor is not None]

    @classmethod
    def stack(cls, contexts: Sequence[PromptContext]) -> PromptContext:
        """Rows beside each other, for sessions that step together; all must have as many tokens."""
        if len(contexts) == 1:
            return contexts[0]
        return cls(tuple(_stacked(layers) for layers in zip(*(each.layers for each in contexts), strict=True)))


def _stacked(layers: Sequence[LayerContext]) -> LayerContext:
    """Image keys are those of all or of none."""
    image_keys = [layer.image_keys for layer in layers if layer.image_keys is not None]
    image_values = [layer.image_values for layer in layers if layer.image_values is not None]
    return LayerContext(
        torch.cat([layer.keys for layer in layers]),
        torch.cat([layer.values for layer in layers]),
        torch.cat(image_keys) if image_keys else None,
        torch.cat(image_values) if image_values else None,
    )


class ImageEmbedding(nn.Module):
    """CLIP features of an image, or of a first and a last one, to the transformer's width."""

    def __init__(self, config: WanConfig, features: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(features), nn.LayerNorm(config.hidden_size)
        self.up, self.down = nn.Linear(features, features), nn.Linear(features, config.hidden_size)
        length = config.pos_embed_seq_len
        self.positions = None if length is None else nn.Parameter(torch.zeros(1, length, features))

    def forward(self, x: Tensor) -> Tensor:
        if self.positions is not None:
            # Both images of a row stand beside each other in one sequence.
            x = x.reshape(-1, 2 * x.shape[1], x.shape[2]) + self.positions
        return self.norm_out(self.down(F.gelu(self.up(self.norm_in(x)))))


class TimeEmbedding(nn.Module):
    """Time steps (rows, frames) to what one says to the head (rows, frames, hidden) and to the layers, six of it."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.waves = config.freq_dim
        self.first, self.second = nn.Linear(config.freq_dim, size), nn.Linear(size, size)
        self.to_layers = nn.Linear(size, 6 * size)

    def forward(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.second(F.silu(self.first(self._waves(timesteps).to(self.first.weight.dtype))))
        return embedded, self.to_layers(F.silu(embedded)).unflatten(-1, (6, -1))

    def _waves(self, timesteps: Tensor) -> Tensor:
        half = self.waves // 2
        steps = torch.arange(half, dtype=torch.float32, device=timesteps.device)
        angle = timesteps.float()[..., None] * torch.exp(-math.log(10_000) / half * steps)
        return torch.cat((angle.cos(), angle.sin()), -1)


class WanTransformer(nn.Module):
    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        size, patch = config.hidden_size, config.patch_size
        self.config = config
        self.patches = nn.Linear(config.in_channels * math.prod(patch), size)
        self.time = TimeEmbedding(config)
        self.text_in, self.text_out = nn.Linear(config.text_dim, size), nn.Linear(size, size)
        self.image = None if config.image_dim is None else ImageEmbedding(config, config.image_dim)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.head = nn.Linear(size, config.patch_values)
        self.modulation = nn.Parameter(torch.zeros(2, size))

    def prompt_context(self, text: Tensor, image: Tensor | None = None) -> PromptContext:
        """From a prompt's embeddings (rows, tokens, text_dim), and an image's features (rows, tokens, image_dim) where
        the checkpoint has that branch. All text tokens are attended to: pad with zeros to the length it was trained on.

        Raises INVALID_VALUE for an image that is missing or not expected.
        """
        if (image is None) != (self.image is None):
            expected = "left out: not attended to" if self.image is None else "given: this checkpoint attends to it"
            raise invalid_value("image", None if image is None else tuple(image.shape), expected)
        embedded = self.text_out(F.gelu(self.text_in(text), approximate="tanh"))
        seen = None if image is None or self.image is None else self.image(image)
        return PromptContext(tuple(block.cross_attention.context(embedded, seen) for block in self.each_block()))

    def rotary(self, positions: Tensor, height: int, width: int) -> Rotary:
        """The rotation of frames at `positions` (rows or 1, frames), of a latent size in pixels."""
        self.config.frame_tokens(height, width)
        _, high, wide = self.config.patch_size
        return rotary(positions, height // high, width // wide, self.config.attention_head_dim)

    def forward(
        self, latents: Tensor, timesteps: Tensor, prompt: PromptContext, rotary: Rotary, attention: SelfAttention
    ) -> Tensor:
        """The flow, noise less clean latents, in the shape of `latents` (rows, channels, frames, height, width).

        `timesteps` is (rows, frames), or (rows, 1) for all frames of a row alike; `rotary` that of these frames.
        """
        height, width = latents.shape[3:]
        x = self.patches(self.in_patches(latents))
        to_head, to_layers = self.time(timesteps)
        to_layers = to_layers.float()
        for block, context in zip(self.each_block(), prompt.layers, strict=True):
            x = block(x, to_layers, context, rotary, attention)
        shift, scale = (self.modulation + to_head.float().unsqueeze(2)).to(x.dtype).unsqueeze(3).unbind(2)
        return self.in_pixels(self.head(modulated(x, scale, shift, self.config.eps)), height, width)

    def each_block(self) -> list[Block]:
        return cast("list[Block]", list(self.blocks))

    def in_patches(self, latents: Tensor) -> Tensor:
        """(rows, frames, patches, channels * patch): what a convolution as wide as its stride multiplies."""
        _, high, wide = self.config.patch_size
        self.config.frame_tokens(*latents.shape[3:])
        split = latents.unflatten(4, (-1, wide)).unflatten(3, (-1, high))
        return split.permute(0, 2, 3, 5, 1, 4, 6).flatten(4, 6).flatten(2, 3)

    def in_pixels(self, patches: Tensor, height: int, width: int) -> Tensor:
        """The head orders a patch's values by pixel, then channel."""
        _, high, wide = self.config.patch_size
        split = patches.unflatten(3, (high, wide, -1)).unflatten(2, (height // high, width // wide))
        return split.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)
