"""Attention over the short dense cache of a depth decoder: one program for each (row, key-value head, new token)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from streamsynth.engine.attention import DenseAttention
from streamsynth.engine.kernels.launching import let_next_start, wait_for_previous


@triton.jit(do_not_specialize=["start"])
def _attend(
    q,
    k,
    v,
    out,
    keys,
    values,
    start,
    token_stride,
    scale,
    count: tl.constexpr,
    length: tl.constexpr,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_g: tl.constexpr,
    block_d: tl.constexpr,
    block_l: tl.constexpr,
    overlap: tl.constexpr,
):
    """Earlier tokens are read from the cache, those of this call from k and v: no program waits for another."""
    let_next_start(overlap)
    row = tl.program_id(0)
    head = tl.program_id(1)
    number = tl.program_id(2)
    place = tl.arange(0, block_d)
    valid = place < head_dim
    member = tl.arange(0, block_g)
    at = tl.arange(0, block_l)
    cached = (row * kv_heads + head) * length * head_dim
    old = (at < start)[:, None] & valid[None, :]
    given = ((at >= start) & (at <= start + number))[:, None] & valid[None, :]
    cache_at = cached + at[:, None] * head_dim + place[None, :]
    given_at = (row * count + at - start)[:, None] * token_stride + head * head_dim + place[None, :]
    wait_for_previous(overlap)

    dtype = q.dtype.element_ty
    query_at = (head * group + member)[:, None] * head_dim + place[None, :]
    query_valid = (member < group)[:, None] & valid[None, :]
    query = tl.load(q + (row * count + number) * token_stride + query_at, mask=query_valid, other=0.0)
    # Of the two sources, one is always zero.
    key = tl.load(keys + cache_at, mask=old, other=0.0) + tl.load(k + given_at, mask=given, other=0.0)
    value = tl.load(values + cache_at, mask=old, other=0.0) + tl.load(v + given_at, mask=given, other=0.0)
    own = (at == start + number)[:, None] & valid[None, :]
    tl.store(keys + cache_at, key, mask=own)
    tl.store(values + cache_at, value, mask=own)

    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    scores = tl.where((at <= start + number)[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    mass = tl.sum(weights, 1)[:, None]
    mixed = tl.dot(weights.to(dtype), value, input_precision="ieee") / mass
    target = out + (row * count + number) * (kv_heads * group * head_dim) + query_at
    tl.store(target, mixed.to(out.dtype.element_ty), mask=query_valid)


class DenseKernel(DenseAttention):
    """A `DenseAttention` whose `attend` is one kernel."""

    overlap = False

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k and v may be parts of one matrix: they share their token stride, and heads lie side by side."""
        keys, values = self._keys[layer], self._values[layer]
        _, heads, head_dim = q.shape
        kv_heads, length = keys.shape[1], keys.shape[2]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        _attend[(self._rows, kv_heads, self._count)](
            q,
            k,
            v,
            out,
            keys,
            values,
            self._start,
            q.stride(0),
            head_dim**-0.5,
            count=self._count,
            length=length,
            kv_heads=kv_heads,
            group=heads // kv_heads,
            head_dim=head_dim,
            block_g=max(16, triton.next_power_of_2(heads // kv_heads)),
            block_d=max(16, triton.next_power_of_2(head_dim)),
            block_l=max(16, triton.next_power_of_2(length)),
            overlap=self.overlap,
            num_warps=4,
            **({"launch_pdl": True} if self.overlap else {}),
        )
        return out
