"""What a chunk attends to: in training, where a clip's chunks are made beside each other, and when they come in turn.

Both give each chunk the latest `context` chunks before it, made clean, and itself. They are the engine's window without
a sink; a test holds them to the package's own block-causal mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.models.wan.attention import scaled_dot_product
from streamsynth.models.wan.rotary import Rotary


@dataclass(frozen=True, slots=True)
class RealRotary(Rotary):
    """The same rotation by `cos` and `sin` (rows, tokens, 1, head_dim / 2): compilers fuse products of real numbers."""

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor) -> Tensor:
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((even * self.cos - odd * self.sin, even * self.sin + odd * self.cos), -1)
        return turned.flatten(-2).to(x.dtype)


class TeacherForcedAttention:
    """A row is a chunk: first all clean ones of a clip, then all noisy ones, then the next clip's.

    A noisy chunk sees the clean ones before it and itself, a clean one the clean ones before it and itself.
    """

    def __init__(self, *, chunks: int, context: int, device: torch.device | str = "cpu") -> None:
        self.chunks, self.context = chunks, context
        place = torch.arange(chunks, device=device)[:, None]
        back = torch.arange(context, 0, -1, device=device)
        there = torch.cat([place >= back, torch.ones_like(place, dtype=torch.bool)], 1)
        self._there = there
        self._hidden: Tensor | None = None

    def show(self, clips: int, alone: Tensor | None = None) -> None:
        """Before each pass: the clips of `alone` (clips,) see no chunk before their noisy ones, as a first chunk does.

        Written in place: a compiled pass reads it where it is.
        """
        if self._hidden is None or len(self._hidden) != clips:
            self._hidden = torch.empty(clips, 2, self.chunks, self.context + 1, device=self._there.device)
        there = self._there.expand(clips, 2, -1, -1)
        if alone is not None:
            there = there.clone()
            there[:, 1, :, :-1] &= ~alone[:, None, None]
        self._hidden.copy_(torch.zeros_like(self._hidden).masked_fill_(~there, -torch.inf))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
        tokens, kind = k.shape[1], v.dtype
        # In mixed precision norms give float32; what is copied for every chunk that sees it is cast before.
        keys, values = self._with_context(rotary.turn(k).to(kind)), self._with_context(v)
        assert self._hidden is not None
        hidden = self._hidden.flatten(0, 2).repeat_interleave(tokens, 1).to(kind)[:, None, None]
        hidden = hidden.expand(-1, q.shape[2], tokens, -1)
        return scaled_dot_product(rotary.turn(q).to(kind), keys, values, hidden)

    def _with_context(self, rows: Tensor) -> Tensor:
        """(rows, tokens, heads, head_dim) to (rows, (context + 1) * tokens, heads, head_dim)."""
        both = rows.unflatten(0, (-1, 2, self.chunks))
        clean = both[:, 0]
        padded = F.pad(clean, (0, 0, 0, 0, 0, 0, self.context, 0))
        before = [padded[:, shift : shift + self.chunks] for shift in range(self.context)]
        context = torch.stack(before, 2)[:, None].expand(-1, 2, -1, -1, -1, -1, -1)
        return torch.cat([context, both[:, :, :, None]], 3).flatten(3, 4).flatten(0, 2)


class OwnChunkAttention:
    """A row is a chunk that sees itself alone, as the first of a video does."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
        return scaled_dot_product(rotary.turn(q).to(v.dtype), rotary.turn(k).to(v.dtype), v)


class SlidingAttention:
    """Chunk after chunk. A pass is kept only if `committing` is set for it; then the oldest may go."""

    def __init__(self, layers: int, context: int) -> None:
        self.committing = False
        self._context = context
        self._kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(layers)]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary) -> Tensor:
        own = (rotary.turn(k), v)
        kept = self._kept[layer]
        keys, values = (torch.cat(parts, 1) for parts in zip(*kept, own, strict=True))
        if self.committing:
            self._kept[layer] = [*kept, own][-self._context :] if self._context else []
        return scaled_dot_product(rotary.turn(q), keys, values)

    def forget(self) -> None:
        self._kept = [[] for _ in self._kept]
