"""Attention for the rows of one step, over pages or over a small dense cache.

Here is what runs everywhere, scaled-dot-product attention over gathered pages: the oracle of faster kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.engine.kv import fp8
from streamsynth.engine.kv.pages import NULL_PAGE, PageId


class Attention(Protocol):
    """What a model's forward pass needs from the engine.

    `positions` (tokens,) int64 are rotary positions. `attend` stores keys and values of one layer and returns causal
    attention of each token over its own row: q (tokens, heads, head_dim), k and v (tokens, kv_heads, head_dim) to
    (tokens, heads, head_dim).
    """

    positions: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class DenseAttention:
    """A cache for rows that all have the same length, kept whole: the depth decoder of a talker.

    Tokens of a call are row-major, (rows * count). Buffers are allocated once; `begin` moves on.
    """

    def __init__(self, *, layers: int, rows: int, length: int, kv_heads: int, head_dim: int, like: Tensor) -> None:
        shape = (layers, rows, kv_heads, length, head_dim)
        self._keys = like.new_zeros(shape)
        self._values = like.new_zeros(shape)
        self._rows = rows
        self._every = torch.arange(length, device=like.device)
        self._stretches: dict[tuple[int, int], _Stretch] = {}
        self.begin(0, length)

    def begin(self, start: int, count: int) -> None:
        """The next forward pass covers positions `start` to `start + count` of each row."""
        self._start, self._count = start, count
        if (start, count) not in self._stretches:
            self._stretches[start, count] = self._stretch(start, count)
        self._now = self._stretches[start, count]
        self.positions = self._now.positions

    def _stretch(self, start: int, count: int) -> _Stretch:
        end, every = start + count, self._every
        return _Stretch(
            positions=every[start:end].repeat(self._rows),
            mask=every[start:end, None] >= every[:end] if count > 1 else None,
            layers=[
                (
                    keys[:, :, start:end].transpose(1, 2),
                    values[:, :, start:end].transpose(1, 2),
                    keys[:, :, :end],
                    values[:, :, :end],
                )
                for keys, values in zip(self._keys, self._values, strict=True)
            ],
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        key_places, value_places, keys, values = self._now.layers[layer]
        key_places.copy_(k.view(key_places.shape))
        value_places.copy_(v.view(value_places.shape))
        out = F.scaled_dot_product_attention(
            q.view(self._rows, self._count, *q.shape[1:]).transpose(1, 2),
            keys,
            values,
            attn_mask=self._now.mask,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out.transpose(1, 2).reshape(q.shape)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Some positions of a dense cache. `layers`: where their keys and values go, and all of both up to their end.

    Made once: in a decode step on the CPU, views take about as long as what is done with them.
    """

    positions: Tensor
    mask: Tensor | None
    layers: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]


class PageMemory:
    """Keys and values of all layers: each (layers, pages, page_size, kv_heads, head_dim) in the model's dtype."""

    quantised: ClassVar[bool] = False

    def __init__(self, *, layers: int, pages: int, page_size: int, kv_heads: int, head_dim: int, like: Tensor) -> None:
        shape = (layers, pages, page_size, kv_heads, head_dim)
        dtype = torch.uint8 if self.quantised else like.dtype
        self.page_size = page_size
        self.dtype = like.dtype
        self.keys, self.values = (like.new_zeros(shape, dtype=dtype) for _ in range(2))
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if self.quantised:
            self.key_scales, self.value_scales = (like.new_zeros(shape[:-1], dtype=torch.float16) for _ in range(2))
        # Views of each layer, made once: in a decode step on the CPU they take about as long as what is done with them.
        self._slots = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self._layers()]
        self._pages = [(keys.flatten(1), values.flatten(1)) for keys, values in self._layers()]

    def _layers(self) -> zip[tuple[Tensor, Tensor]]:
        return zip(self.keys, self.values, strict=True)

    @classmethod
    def page_bytes(cls, *, layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        head_bytes = fp8.token_bytes(head_dim) if cls.quantised else head_dim * dtype.itemsize
        return 2 * layers * page_size * kv_heads * head_bytes

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write tokens (tokens, kv_heads, head_dim) to `slots` (tokens,): page * page_size + place in the page."""
        keys, values = self._slots[layer]
        keys.index_copy_(0, slots, k)
        values.index_copy_(0, slots, v)

    def gather(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the pages of a table (rows, pages), as (rows, tokens, kv_heads, head_dim) in the model's dtype."""
        keys, values = self._pages[layer]
        listed = table.flatten()
        shape = (table.shape[0], -1, *self.keys.shape[3:])
        # Whole pages by one index: on the CPU several times as fast as `keys[table]`.
        return keys.index_select(0, listed).view(shape), values.index_select(0, listed).view(shape)


class QuantisedPageMemory(PageMemory):
    """Pages of float8 e4m3 bytes (as uint8), and in `key_scales` and `value_scales`, (layers, pages, page_size,
    kv_heads) float16, what each token of each head was divided by.

    An element is off by at most 2^-4 of itself, or of 2^-6 of its head's scale.
    """

    quantised = True

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        assert self.key_scales is not None
        assert self.value_scales is not None
        (k, key_scales), (v, value_scales) = fp8.quantise(k), fp8.quantise(v)
        super().store(layer, slots, k, v)
        self.key_scales[layer].flatten(0, 1).index_copy_(0, slots, key_scales)
        self.value_scales[layer].flatten(0, 1).index_copy_(0, slots, value_scales)

    def gather(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        assert self.key_scales is not None
        assert self.value_scales is not None
        keys, values = super().gather(layer, table)
        key_scales, value_scales = (
            scales[layer][table].flatten(1, 2) for scales in (self.key_scales, self.value_scales)
        )
        return fp8.dequantise(keys, key_scales, self.dtype), fp8.dequantise(values, value_scales, self.dtype)


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Where one row stands in a step: `count` new tokens from position `start` on, in these pages."""

    start: int
    count: int
    pages: Sequence[PageId]


class PagedAttention:
    """Attention of one step over the pages of its rows; the tokens of `spans` lie one span after the other."""

    def __init__(self, memory: PageMemory, spans: Sequence[RowSpan], device: torch.device) -> None:
        self._memory = memory
        size = memory.page_size
        positions = [p for span in spans for p in range(span.start, span.start + span.count)]
        slots = [
            span.pages[p // size] * size + p % size
            for span in spans
            for p in range(span.start, span.start + span.count)
        ]
        self.positions = torch.tensor(positions, device=device)
        self._slots = torch.tensor(slots, device=device)
        self._decoding = all(span.count == 1 for span in spans)
        self._groups = self._together(spans, device) if self._decoding else self._apart(spans, device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._memory.store(layer, self._slots, k, v)
        if self._decoding:
            # The query heads that share a key head look alike to it: several queries of one head.
            (group,) = self._groups
            alike = q.view(len(q), k.shape[1], -1, q.shape[2])
            return group.attend(self._memory, layer, alike, grouped=False).reshape(q.shape)
        grouped = q.shape[1] != k.shape[1]
        parts = []
        start = 0
        for group in self._groups:
            row = q[start : start + group.count].transpose(0, 1)[None]
            parts.append(group.attend(self._memory, layer, row, grouped)[0].transpose(0, 1))
            start += group.count
        return torch.cat(parts)

    def _together(self, spans: Sequence[RowSpan], device: torch.device) -> list[_Group]:
        """All rows as one batch, padded to the longest with the null page."""
        size = self._memory.page_size
        used = [-(-(span.start + 1) // size) for span in spans]
        longest = max(used)
        table = [[*span.pages[:n], *[NULL_PAGE] * (longest - n)] for span, n in zip(spans, used, strict=True)]
        equal = len({span.start for span in spans}) == 1
        length = longest * size if not equal else spans[0].start + 1
        mask = None
        if not equal:
            ends = torch.tensor([span.start for span in spans], device=device)
            beyond = torch.arange(length, device=device) > ends[:, None]
            mask = torch.zeros(beyond.shape, dtype=self._memory.dtype, device=device).masked_fill_(beyond, -torch.inf)
            mask = mask[:, None, None]
        return [_Group(1, torch.tensor(table, device=device), length, mask)]

    def _apart(self, spans: Sequence[RowSpan], device: torch.device) -> list[_Group]:
        size = self._memory.page_size
        groups = []
        for span in spans:
            end = span.start + span.count
            table = torch.tensor([span.pages[: -(-end // size)]], device=device)
            at = torch.arange(end, device=device)
            mask = None if span.count == 1 else at[span.start :, None] >= at
            groups.append(_Group(span.count, table, end, mask))
        return groups


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend together: `count` queries each, over the first `length` tokens of their pages."""

    count: int
    table: Tensor
    length: int
    mask: Tensor | None

    def attend(self, memory: PageMemory, layer: int, q: Tensor, grouped: bool) -> Tensor:
        """q (rows, heads, count, head_dim); returns its shape."""
        keys, values = (tokens[:, : self.length].transpose(1, 2) for tokens in memory.gather(layer, self.table))
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=self.mask, enable_gqa=grouped)
