"""Keys and values of a sliding window for every stream, in rings, and one step's rotation and mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """`window` positions are attended to, the newest included.

    `signed_frequencies` (head_dim) are the rotary ones in float64, negative in the first half of a head.
    """

    layers: int
    kv_heads: int
    head_dim: int
    window: int
    signed_frequencies: Tensor


class RingCache:
    """Keys and values, (layers, streams, places, keys' heads then values', channels); position p is at p % places.

    A step writes before it attends. So a ring has room for a window and a whole step, and what an idle row writes lies
    over positions outside of its window.
    """

    def __init__(self, shape: AttentionShape, rows: int, max_steps: int, dtype: torch.dtype) -> None:
        device = shape.signed_frequencies.device
        self.shape = shape
        # Rounded up to where kernels find each row of the mask aligned.
        self.places = -(-(shape.window - 1 + max_steps) // 8) * 8
        size = (shape.layers, rows, self.places, 2 * shape.kv_heads, shape.head_dim)
        self.kv = torch.zeros(size, dtype=dtype, device=device)
        self._places = torch.arange(self.places, device=device)
        self._seen, self._unseen = (torch.tensor(value, dtype=dtype, device=device) for value in (0.0, float("-inf")))

    def begin(self, positions: Tensor, slots: Tensor, gathered: bool) -> AttentionStep:
        """positions (rows, steps) that a step adds to streams `slots`; not `gathered` if those are all, in order."""
        window, own = self.shape.window, positions[:, :, None]
        # How old a place's position is, seen from each of the step's. One that the step writes later comes out as
        # older than the window, and one never written as older than the stream.
        age = (own - self._places) % self.places
        unseen = age > own.clamp_max(window - 1)
        # In float64: positions have no end, and float32 angles are a hundredth of a radian off after an hour.
        angles = own * self.shape.signed_frequencies
        return AttentionStep(
            kv=self.kv,
            rows=slots if gathered else None,
            at=(slots[:, None], positions % self.places),
            mask=torch.where(unseen, self._unseen, self._seen)[:, None],
            cos=angles.cos().to(self.kv.dtype)[:, :, None],
            sin=angles.sin().to(self.kv.dtype)[:, :, None],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionStep:
    """What every layer of a step shares: mask (rows, 1, steps, places), cos and sin (rows, steps, 1, channels)."""

    kv: Tensor
    rows: Tensor | None
    at: tuple[Tensor, Tensor]
    mask: Tensor
    cos: Tensor
    sin: Tensor

    def rotate_(self, heads: Tensor) -> None:
        """Rotary embedding in place; `sin` is negative in its first half, so that swapping halves is enough."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        torch.addcmul(heads * self.cos, swapped, self.sin, out=heads)

    def remember(self, layer: int, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new ones (rows, steps, heads, channels); all of them, (rows, heads, places, channels)."""
        kept = self.kv[layer]
        kept.index_put_(self.at, keys_values)
        if self.rows is not None:
            kept = kept.index_select(0, self.rows)
        keys, values = kept.transpose(1, 2).chunk(2, dim=1)
        return keys, values
