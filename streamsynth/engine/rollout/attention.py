"""Self-attention of one chunk over the frames before it, read from pages once and used by every pass over the chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.engine.rollout.frame_memory import FrameMemory
from streamsynth.engine.rollout.model import Rotation


@dataclass(frozen=True, slots=True)
class Span:
    """Frames of the rows of a pass: their pages (rows, frames * pages_per_frame) int64, and their rotation."""

    table: Tensor
    rotation: Rotation


class ChunkAttention:
    """Keys lie in the pages unrotated, because a frame's rotary position changes as others before it slide out: here
    they are rotated, once a chunk, into one dense buffer a layer, of which the chunk's own keys are the end.

    `context` is None for a first chunk. Passes are not kept unless `commit_to` names the chunk's pages.
    """

    def __init__(self, memory: FrameMemory, context: Span | None, frame_tokens: int) -> None:
        self.commit_to: Tensor | None = None
        self._memory = memory
        self._context = context
        self._frame_tokens = frame_tokens
        self._buffers: list[tuple[Tensor, Tensor] | None] = [None] * memory.layers

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Any) -> Tensor:
        if self.commit_to is not None:
            self._memory.store(layer, self.commit_to, k, v, self._frame_tokens)
        keys, values = self._buffer(layer, k)
        tokens = k.shape[1]
        keys[:, -tokens:] = rotary.turn(k)
        values[:, -tokens:] = v
        out = F.scaled_dot_product_attention(
            rotary.turn(q).transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        )
        return out.transpose(1, 2)

    def _buffer(self, layer: int, k: Tensor) -> tuple[Tensor, Tensor]:
        buffer = self._buffers[layer]
        if buffer is None:
            if self._context is None:
                buffer = torch.empty_like(k), torch.empty_like(k)
            else:
                keys, values = self._memory.gather(layer, self._context.table, self._frame_tokens)
                keys = self._context.rotation.turn(keys)
                buffer = torch.cat((keys, torch.empty_like(k)), 1), torch.cat((values, torch.empty_like(k)), 1)
            self._buffers[layer] = buffer
        return buffer
