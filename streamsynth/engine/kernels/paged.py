"""Paged attention of single tokens: one program for each (token, key-value head, part of the context).

All query heads of a group share a program, so keys and values are read once. Float8 pages are read as they are: a
key's scale multiplies its score, a value's scale its weight. The parts of a context are merged by the last to arrive.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from streamsynth.engine.attention import Attention, PageMemory
from streamsynth.engine.kernels.launching import let_next_start, wait_for_previous
from streamsynth.engine.kv.fp8 import LARGEST, SMALLEST_SCALE

_LARGEST = tl.constexpr(LARGEST)
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


@triton.jit
def _write(pages, scales, slot, vector, place, valid, head_dim: tl.constexpr, quantised: tl.constexpr):
    """Store one head's vector; returns it as it will be read, and the scale it is to be multiplied by."""
    factor = 1.0
    if quantised:
        wide = vector.to(tl.float32)
        rounded = tl.maximum(tl.div_rn(tl.max(tl.abs(wide), 0), _LARGEST), _SMALLEST_SCALE).to(tl.float16)
        tl.store(scales + slot, rounded)
        factor = rounded.to(tl.float32)
        reduced = tl.minimum(tl.maximum(tl.div_rn(wide, factor + tl.zeros_like(wide)), -_LARGEST), _LARGEST)
        stored = reduced.to(pages.dtype.element_ty)
    else:
        stored = vector.to(pages.dtype.element_ty)
    tl.store(pages + slot * head_dim + place, stored, mask=valid)
    return stored, factor


@triton.jit
def _store(
    k,
    v,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    owners,
    positions,
    token_stride,
    table_stride,
    page_size: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_d: tl.constexpr,
    quantised: tl.constexpr,
    overlap: tl.constexpr,
):
    let_next_start(overlap)
    token = tl.program_id(0)
    head = tl.program_id(1)
    place = tl.arange(0, block_d)
    valid = place < head_dim
    wait_for_previous(overlap)
    position = tl.load(positions + token)
    page = tl.load(tables + tl.load(owners + token) * table_stride + position // page_size).to(tl.int64)
    slot = (page * page_size + position % page_size) * kv_heads + head
    at = token * token_stride + head * head_dim + place
    _write(keys, key_scales, slot, tl.load(k + at, mask=valid, other=0.0), place, valid, head_dim, quantised)
    _write(values, value_scales, slot, tl.load(v + at, mask=valid, other=0.0), place, valid, head_dim, quantised)


@triton.jit
def _pages_of(table, start, end, page_size: tl.constexpr, block_t: tl.constexpr):
    """The page of each token of a block; the null page beyond the end."""
    at = start + tl.arange(0, block_t)
    return tl.load(table + at // page_size, mask=at < end, other=0)


@triton.jit
def _slots_of(
    page, head, start, page_size: tl.constexpr, kv_heads: tl.constexpr, block_t: tl.constexpr, slot_type: tl.constexpr
):
    at = start + tl.arange(0, block_t)
    return (page.to(slot_type) * page_size + at % page_size) * kv_heads + head


@triton.jit
def _scan_products(
    query, keys, values, table, head, begin, end, scale, best, mass, mixed,
    page_size: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, block_d: tl.constexpr,
    block_t: tl.constexpr, slot_type: tl.constexpr,
):  # fmt: skip
    """Go over a context on tensor cores: what was mixed before, and best score and mass of it, go on. `scale` is that
    of exponents of two."""
    dtype = query.dtype
    place = tl.arange(0, block_d)
    valid = place < head_dim
    page = _pages_of(table, begin, end, page_size, block_t)
    for start in range(begin, end, block_t):
        inside = start + tl.arange(0, block_t) < end
        slot = _slots_of(page, head, start, page_size, kv_heads, block_t, slot_type)
        page = _pages_of(table, start + block_t, end, page_size, block_t)
        key = tl.load(
            keys + slot[None, :] * head_dim + place[:, None], mask=inside[None, :] & valid[:, None], other=0.0
        )
        value_mask = inside[:, None] & valid[None, :]
        value = tl.load(values + slot[:, None] * head_dim + place[None, :], mask=value_mask, other=0.0)
        scores = tl.dot(query, key, input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(best - higher)
        mass = mass * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(dtype), value, input_precision="ieee")
        best = higher
    return best, mass, mixed


@triton.jit
def _scales_of(
    scales, page, head, start, end,
    page_size: tl.constexpr, kv_heads: tl.constexpr, block_t: tl.constexpr, slot_type: tl.constexpr,
):  # fmt: skip
    slot = _slots_of(page, head, start, page_size, kv_heads, block_t, slot_type)
    return tl.load(scales + slot, mask=start + tl.arange(0, block_t) < end, other=0.0)


@triton.jit
def _scan_float8(
    query, keys, values, key_scales, value_scales, table, head, begin, end, scale, best, mass, mixed,
    page_size: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, block_d: tl.constexpr,
    block_t: tl.constexpr, slot_type: tl.constexpr,
):  # fmt: skip
    """As `_scan_products`, in float16, which holds every float8 number: queries are divided by their largest, values'
    scales by their block's. Two neighbouring bytes of a value are one element on their way to the tensor cores, which
    turn elements of two bytes for nothing; so even and odd places of the mixture are added up apart.
    """
    half: tl.constexpr = tl.float32 if query.dtype == tl.float32 else tl.float16
    place = tl.arange(0, block_d)
    pair = tl.arange(0, block_d // 2)
    wide = query.to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(wide), 1), 1e-30)
    reduced = (wide / largest[:, None]).to(half)
    unit = largest * scale
    pairs = values.to(tl.pointer_type(tl.uint16), bitcast=True)
    even = tl.zeros((query.shape[0], block_d // 2), tl.float32)
    odd = tl.zeros((query.shape[0], block_d // 2), tl.float32)
    first = best
    page = _pages_of(table, begin, end, page_size, block_t)
    key_scale = _scales_of(key_scales, page, head, begin, end, page_size, kv_heads, block_t, slot_type)
    value_scale = _scales_of(value_scales, page, head, begin, end, page_size, kv_heads, block_t, slot_type)
    for start in range(begin, end, block_t):
        inside = start + tl.arange(0, block_t) < end
        slot = _slots_of(page, head, start, page_size, kv_heads, block_t, slot_type)
        following = start + block_t
        page = _pages_of(table, following, end, page_size, block_t)
        key_mask = inside[None, :] & (place < head_dim)[:, None]
        key = tl.load(keys + slot[None, :] * head_dim + place[:, None], mask=key_mask, other=0.0)
        value_mask = inside[:, None] & (pair < head_dim // 2)[None, :]
        value = tl.load(pairs + slot[:, None] * (head_dim // 2) + pair[None, :], mask=value_mask, other=0)
        scores = tl.dot(reduced, key.to(half), input_precision="ieee")
        scores *= unit[:, None] * key_scale.to(tl.float32)[None, :]
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(best - higher)
        mass = mass * fade + tl.sum(weights, 1)
        wide_scale = value_scale.to(tl.float32)
        top = tl.max(wide_scale, 0)
        weights = (weights * (wide_scale / top)[None, :]).to(half)
        low = (value & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(half)
        high = (value >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(half)
        even = even * fade[:, None] + tl.dot(weights, low, input_precision="ieee") * top
        odd = odd * fade[:, None] + tl.dot(weights, high, input_precision="ieee") * top
        key_scale = _scales_of(key_scales, page, head, following, end, page_size, kv_heads, block_t, slot_type)
        value_scale = _scales_of(value_scales, page, head, following, end, page_size, kv_heads, block_t, slot_type)
        best = higher
    # A part of a context may be empty: then nothing has a score.
    fade = tl.exp2(first - tl.where(best == float("-inf"), 0.0, best))
    return best, mass, mixed * fade[:, None] + tl.interleave(even, odd)


@triton.jit
def _attend(
    q,
    k,
    v,
    out,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    owners,
    positions,
    partial,
    arrivals,
    token_stride,
    table_stride,
    scale,
    page_size: tl.constexpr,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_g: tl.constexpr,
    block_d: tl.constexpr,
    block_t: tl.constexpr,
    splits: tl.constexpr,
    alone: tl.constexpr,
    slot_type: tl.constexpr,
    quantised: tl.constexpr,
    overlap: tl.constexpr,
):
    """With `alone` the token's own key and value are written here, else they are in the pages already."""
    let_next_start(overlap)
    token = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    place = tl.arange(0, block_d)
    valid = place < head_dim
    member = tl.arange(0, block_g)
    position = tl.load(positions + token)
    table = tables + tl.load(owners + token) * table_stride
    wait_for_previous(overlap)

    query_at = (head * group + member)[:, None] * head_dim + place[None, :]
    query_valid = (member < group)[:, None] & valid[None, :]
    query = tl.load(q + token * token_stride + query_at, mask=query_valid, other=0.0)
    best = tl.full((block_g,), float("-inf"), tl.float32)
    mass = tl.zeros((block_g,), tl.float32)
    mixed = tl.zeros((block_g, block_d), tl.float32)
    length = position + 1
    if alone:
        length = position
        if split == 0:
            page = tl.load(table + position // page_size).to(tl.int64)
            slot = (page * page_size + position % page_size) * kv_heads + head
            at = token * token_stride + head * head_dim + place
            key = tl.load(k + at, mask=valid, other=0.0)
            value = tl.load(v + at, mask=valid, other=0.0)
            key, key_factor = _write(keys, key_scales, slot, key, place, valid, head_dim, quantised)
            value, value_factor = _write(values, value_scales, slot, value, place, valid, head_dim, quantised)
            best = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * (scale * key_factor)
            mass = tl.full((block_g,), 1.0, tl.float32)
            mixed += value.to(tl.float32)[None, :] * value_factor

    blocks = tl.cdiv(length, block_t)
    share = tl.cdiv(blocks, splits) * block_t
    begin = split * share
    end = tl.minimum(begin + share, length)
    if quantised:
        best, mass, mixed = _scan_float8(
            query, keys, values, key_scales, value_scales, table, head, begin, end, scale,
            best, mass, mixed, page_size, kv_heads, head_dim, block_d, block_t, slot_type,
        )  # fmt: skip
    else:
        best, mass, mixed = _scan_products(
            query, keys, values, table, head, begin, end, scale, best, mass, mixed,
            page_size, kv_heads, head_dim, block_d, block_t, slot_type,
        )  # fmt: skip

    last = True
    if splits > 1:
        # Of each part: the mixed values, then the highest score and the mass of every query head.
        size: tl.constexpr = block_g * block_d + 2 * block_g
        unit = token * kv_heads + head
        parts = partial + unit * splits * size
        mixed_at = member[:, None] * block_d + place[None, :]
        mine = parts + split * size
        tl.store(mine + mixed_at, mixed)
        tl.store(mine + block_g * block_d + member, best)
        tl.store(mine + block_g * block_d + block_g + member, mass)
        # All of this program's parts are written before its arrival is counted.
        tl.debug_barrier()
        last = tl.atomic_add(arrivals + unit, 1, sem="acq_rel") == splits - 1
        if last:
            best = tl.full((block_g,), float("-inf"), tl.float32)
            for part in tl.static_range(splits):
                its_best = tl.load(parts + part * size + block_g * block_d + member, cache_modifier=".cg")
                best = tl.maximum(best, its_best)
            mass = tl.zeros((block_g,), tl.float32)
            mixed = tl.zeros((block_g, block_d), tl.float32)
            for part in tl.static_range(splits):
                its = parts + part * size
                fade = tl.exp2(tl.load(its + block_g * block_d + member, cache_modifier=".cg") - best)
                mass += fade * tl.load(its + block_g * block_d + block_g + member, cache_modifier=".cg")
                mixed += fade[:, None] * tl.load(its + mixed_at, cache_modifier=".cg")
            tl.store(arrivals + unit, 0)
    if last:
        row = out + token * (kv_heads * group * head_dim)
        tl.store(row + query_at, (mixed / mass[:, None]).to(out.dtype.element_ty), mask=query_valid)


class PagedKernels:
    """A `TableAttentionType` on CUDA; owns the scratch memory of split contexts. For one stream at a time.

    A context is split until there are `programs` programs.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        overlap: bool = False,
        programs: int = 512,
        block_t: int = 64,
        warps: int = 4,
        stages: int = 3,
    ) -> None:
        self.overlap = overlap
        self.programs = programs
        self.block_t = block_t
        self.warps = warps
        self.stages = stages
        self.partial = torch.empty(4 << 20, dtype=torch.float32, device=device)
        self.arrivals = torch.zeros(1 << 16, dtype=torch.int32, device=device)

    def __call__(
        self, memory: PageMemory, positions: Tensor, owners: Tensor, tables: Tensor, *, alone: bool
    ) -> Attention:
        return _KernelAttention(self, memory, positions, owners, tables, alone)


class _KernelAttention:
    def __init__(
        self,
        kernels: PagedKernels,
        memory: PageMemory,
        positions: Tensor,
        owners: Tensor,
        tables: Tensor,
        alone: bool,
    ) -> None:
        self.positions = positions
        self._kernels = kernels
        self._memory = memory
        self._owners = owners
        self._tables = tables
        self._alone = alone

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k and v may be parts of one matrix: they share their token stride, and heads lie side by side."""
        kernels, memory = self._kernels, self._memory
        tokens, heads, head_dim = q.shape
        kv_heads = k.shape[1]
        keys, values = memory.keys[layer], memory.values[layer]
        key_scales = value_scales = keys
        quantised = memory.key_scales is not None and memory.value_scales is not None
        if memory.key_scales is not None and memory.value_scales is not None:
            keys, values = keys.view(torch.float8_e4m3fn), values.view(torch.float8_e4m3fn)
            key_scales, value_scales = memory.key_scales[layer], memory.value_scales[layer]
        block_d = max(16, triton.next_power_of_2(head_dim))
        # Tensor cores take 16 rows.
        block_g = max(16, triton.next_power_of_2(heads // kv_heads))
        pages = (keys, values, key_scales, value_scales, self._tables, self._owners, self.positions)
        shape = {
            "page_size": memory.page_size,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "block_d": block_d,
            "quantised": quantised,
            "overlap": kernels.overlap,
            **({"launch_pdl": True} if kernels.overlap else {}),
        }
        if not self._alone:
            _store[(tokens, kv_heads)](k, v, *pages, k.stride(0), self._tables.stride(0), **shape, num_warps=1)
        wanted = triton.cdiv(kernels.programs, tokens * kv_heads)
        splits = min(16, triton.next_power_of_2(wanted)) if self._alone else 1
        part = block_g * block_d + 2 * block_g
        while splits > 1 and tokens * kv_heads * splits * part > kernels.partial.numel():
            splits //= 2
        # Of float8 pages a block costs more instructions than it has bytes: with few large ones they are the fewest.
        large_blocks = quantised and splits == 1
        out = torch.empty((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
        _attend[(tokens, kv_heads, splits)](
            q,
            k,
            v,
            out,
            *pages,
            kernels.partial,
            kernels.arrivals,
            q.stride(0),
            self._tables.stride(0),
            head_dim**-0.5 * math.log2(math.e),
            group=heads // kv_heads,
            block_g=block_g,
            block_t=2 * kernels.block_t if large_blocks else kernels.block_t,
            splits=splits,
            alone=self._alone,
            # A layer's pages rarely need the wider numbers, which take two instructions for one.
            slot_type=tl.int64 if keys.numel() >= 1 << 31 else tl.int32,
            **shape,
            num_warps=kernels.warps,
            num_stages=2 if large_blocks else kernels.stages,
            # Four programs of four warps on a multiprocessor: 64 streams of 8 heads then run at once.
            maxnreg=128 if kernels.warps == 4 else None,
        )
        return out
