"""Paged attention of a step at fixed shapes: which token belongs to which row is data, not structure."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.engine.attention import Attention, PageMemory


class TableAttentionType(Protocol):
    """Makes the attention of one forward pass.

    `positions` (tokens,) int64 and `owners` (tokens,) int64 say where each token stands, and in which row of `tables`
    (rows, pages) int32. `alone` promises that no two tokens have the same owner.
    """

    def __call__(
        self, memory: PageMemory, positions: Tensor, owners: Tensor, tables: Tensor, *, alone: bool
    ) -> Attention: ...


class TableAttention:
    """The oracle of the kernels: every token attends over the gathered whole of its row's table, masked."""

    def __init__(self, memory: PageMemory, positions: Tensor, owners: Tensor, tables: Tensor, *, alone: bool) -> None:
        self.positions = positions
        self._memory = memory
        self._tables = tables[owners].long()
        size = memory.page_size
        page = self._tables.gather(1, (positions // size)[:, None])[:, 0]
        self._slots = page * size + positions % size
        length = tables.shape[1] * size
        self._mask = (torch.arange(length, device=tables.device) <= positions[:, None])[:, None, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._memory.store(layer, self._slots, k, v)
        keys, values = (tokens.transpose(1, 2) for tokens in self._memory.gather(layer, self._tables))
        out = F.scaled_dot_product_attention(
            q[:, :, None], keys, values, attn_mask=self._mask, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out[:, :, 0]
