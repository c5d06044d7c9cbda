"""Self-attention of one chunk over the frames before it, read from pages once and used by every pass over the chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from streamsynth.engine.rollout.frame_memory import FrameMemory
from streamsynth.engine.rollout.model import Rotation


@dataclass(frozen=True, slots=True)
class Span:
    """Frames of the rows of a pass: their pages (rows, frames * pages_per_frame) int64, and their rotation."""

    table: Tensor
    rotation: Rotation


class KeyBuffers:
    """A dense buffer a layer for keys and one for values, which chunks use one after the other. It grows to the largest
    asked for, and moves then."""

    def __init__(self, *, layers: int, heads: int, head_dim: int, like: Tensor) -> None:
        self._memory = like.new_empty(layers, 2, 0, heads, head_dim)

    def view(self, rows: int, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, (rows, tokens, heads, head_dim); what they hold is anything."""
        layers, _, room, heads, head_dim = self._memory.shape
        needed = rows * tokens
        if needed > room:
            self._memory = self._memory.new_empty(layers, 2, needed, heads, head_dim)
        parts = self._memory[:, :, :needed].unflatten(2, (rows, tokens))
        return [(keys, values) for keys, values in (layer.unbind() for layer in parts.unbind())]


class ChunkAttention:
    """Keys lie in the pages unrotated, because a frame's rotary position changes as others before it slide out: here
    they are rotated, once a chunk, into the dense buffers, of which the chunk's own keys are the end.

    Passes are not kept unless `commit_to` names the chunk's pages.
    """

    def __init__(self, memory: FrameMemory, buffers: Sequence[tuple[Tensor, Tensor]], frame_tokens: int) -> None:
        self.commit_to: Tensor | None = None
        self._memory = memory
        self._buffers = buffers
        self._frame_tokens = frame_tokens

    def load(self, context: Span) -> None:
        """Bring in the frames before the chunk, as they are in the pages now."""
        for layer, (keys, values) in enumerate(self._buffers):
            kept_keys, kept_values = self._memory.gather(layer, context.table, self._frame_tokens)
            tokens = kept_keys.shape[1]
            context.rotation.turn_into(kept_keys, keys[:, :tokens])
            values[:, :tokens] = kept_values

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Any) -> Tensor:
        if self.commit_to is not None:
            self._memory.store(layer, self.commit_to, k, v, self._frame_tokens)
        keys, values = self._buffers[layer]
        tokens = k.shape[1]
        rotary.turn_into(k, keys[:, -tokens:])
        values[:, -tokens:] = v
        out = F.scaled_dot_product_attention(
            rotary.turn(q).transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        )
        return out.transpose(1, 2)
