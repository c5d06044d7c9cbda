"""Self-attention as the transformer sees it, and the ways to run it that need no engine."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.models.wan.rotary import Rotary


class SelfAttention(Protocol):
    """What a forward pass needs from whoever holds the keys and values of earlier frames.

    `attend` gets one layer's q, k and v of the tokens of the pass, (rows, tokens, heads, head_dim), normalised but not
    rotated, and the rotation of those tokens; it returns attention in q's shape and dtype. Keys come unrotated so that
    a cache may keep them that way, and give a frame another position later.
    """

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor: ...


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """All (rows, tokens, heads, head_dim); `mask` says which keys a query sees."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.transpose(1, 2)


class FullAttention:
    """Every token sees every token: a whole clip at once, as Wan was trained."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
        return scaled_dot_product(rotary.turn(q), rotary.turn(k), v)


class BlockCausalAttention:
    """A whole clip at once where a token sees its own chunk and those before it: training, and the oracle of caches.

    With `window_frames` a chunk sees only so many latest frames, itself included, and the first `sink_frames`.
    """

    def __init__(
        self,
        *,
        frames: int,
        frame_tokens: int,
        chunk_frames: int,
        window_frames: int | None = None,
        sink_frames: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        frame = torch.arange(frames, device=device).repeat_interleave(frame_tokens)
        end = (frame // chunk_frames + 1) * chunk_frames
        mask = frame[None] < end[:, None]
        if window_frames is not None:
            mask &= (frame[None] >= end[:, None] - window_frames) | (frame[None] < sink_frames)
        self.mask = mask

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
        return scaled_dot_product(rotary.turn(q), rotary.turn(k), v, self.mask)


class ContextAttention:
    """Chunk after chunk over the keys and values of all chunks committed before: nothing is ever evicted.

    A pass is not kept unless `committing` is set for it. Keys are kept rotated.
    """

    def __init__(self, layers: int) -> None:
        self.committing = False
        self._kept: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
        keys, values = rotary.turn(k), v
        kept = self._kept[layer]
        if kept is not None:
            keys, values = torch.cat((kept[0], keys), 1), torch.cat((kept[1], values), 1)
        if self.committing:
            self._kept[layer] = keys, values
        return scaled_dot_product(rotary.turn(q), keys, values)
