"""x @ w.T for few rows, with what surrounds it in a decoder layer: RMS norm before; gate, rotary turn or sum after.

Few rows make a product a matter of reading the weights once. A single row is summed without tensor cores; more are
padded to a tile of them. Where the columns are too few to occupy the chip, the inner dimension is split, and the last
program of a tile to arrive adds the parts up in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
import triton
import triton.language as tl
from torch import Tensor

from streamsynth.engine.kernels.launching import fetch, let_next_start, wait_for_previous


class Form(IntEnum):
    """What becomes of the product: stored; added to a residual; SiLU of the first half times the second; turned."""

    PLAIN = 0
    RESIDUAL = 1
    GATED = 2
    ROTARY = 3


@dataclass(frozen=True, slots=True)
class Tiling:
    """The shape of one program's work. `columns` counts pairs of columns in the gated and the rotary form."""

    rows: int
    columns: int
    inner: int
    splits: int = 1
    warps: int = 4
    stages: int = 3


@triton.jit(do_not_specialize=["rows"])
def _product(
    x,
    w,
    out,
    norm,
    residual,
    positions,
    cos,
    sin,
    partial,
    arrivals,
    rows,
    x_stride,
    out_stride,
    residual_stride,
    eps,
    n: tl.constexpr,
    k: tl.constexpr,
    form: tl.constexpr,
    normed: tl.constexpr,
    head_dim: tl.constexpr,
    turned_heads: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    splits: tl.constexpr,
    overlap: tl.constexpr,
    ahead: tl.constexpr,
):
    """`n` counts output columns (pairs of them in the gated and the rotary form); w is (rows of weights, k)."""
    let_next_start(overlap)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    paired: tl.constexpr = form >= 2
    half: tl.constexpr = head_dim // 2
    head = 0
    if form == 3:
        per_head: tl.constexpr = (half + block_n - 1) // block_n
        head = tile // per_head
        place = (tile % per_head) * block_n + tl.arange(0, block_n)
        valid = place < half
        first = head * head_dim + place
        second = first + half
    else:
        place = tile * block_n + tl.arange(0, block_n)
        valid = place < n
        first = place
        second = place + n
    span: tl.constexpr = ((k + splits - 1) // splits + block_k - 1) // block_k * block_k
    begin = split * span

    if overlap and ahead > 0:
        line = begin + tl.arange(0, ahead) * (128 // (w.dtype.element_ty.primitive_bitwidth // 8))
        line = tl.minimum(line, k - 1)
        fetch(w + tl.where(valid, first, 0)[:, None] * k + line[None, :])
        if paired:
            fetch(w + tl.where(valid, second, 0)[:, None] * k + line[None, :])
    wait_for_previous(overlap)

    m = tl.program_id(2) * block_m + tl.arange(0, block_m)
    row_valid = m < rows
    inner = tl.arange(0, block_k)
    if block_m == 1:
        sums = tl.zeros((block_n, block_k), tl.float32)
        pair_sums = tl.zeros((block_n, block_k), tl.float32)
        square_sums = tl.zeros((block_k,), tl.float32)
        for start in tl.static_range(0, span, block_k):
            at = begin + start + inner
            inside = at < k
            mask = valid[:, None] & inside[None, :]
            weights = tl.load(w + first[:, None] * k + at[None, :], mask=mask, other=0.0)
            if paired:
                pair_weights = tl.load(w + second[:, None] * k + at[None, :], mask=mask, other=0.0)
            values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            if normed:
                square_sums += values * values
                values *= tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
            sums += weights.to(tl.float32) * values[None, :]
            if paired:
                pair_sums += pair_weights.to(tl.float32) * values[None, :]
        total = tl.sum(sums, 1)[None, :]
        pair_total = tl.sum(pair_sums, 1)[None, :]
        squares = tl.sum(square_sums, 0) + tl.zeros((1,), tl.float32)
    else:
        total = tl.zeros((block_m, block_n), tl.float32)
        pair_total = tl.zeros((block_m, block_n), tl.float32)
        squares = tl.zeros((block_m,), tl.float32)
        for start in range(0, span, block_k):
            at = begin + start + inner
            inside = at < k
            values = tl.load(
                x + m[:, None] * x_stride + at[None, :], mask=row_valid[:, None] & inside[None, :], other=0.0
            )
            mask = inside[:, None] & valid[None, :]
            weights = tl.load(w + first[None, :] * k + at[:, None], mask=mask, other=0.0)
            if normed:
                wide = values.to(tl.float32)
                squares += tl.sum(wide * wide, 1)
                scaled = wide * tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)[None, :]
                values = scaled.to(w.dtype.element_ty)
            total = tl.dot(values, weights, total, input_precision="ieee")
            if paired:
                pair_weights = tl.load(w + second[None, :] * k + at[:, None], mask=mask, other=0.0)
                pair_total = tl.dot(values, pair_weights, pair_total, input_precision="ieee")
    if normed:
        factor = tl.rsqrt(squares / k + eps)[:, None]
        total *= factor
        pair_total *= factor

    mask = row_valid[:, None] & valid[None, :]
    last = True
    if splits > 1:
        tiles = tl.num_programs(0)
        mine = partial + m[:, None] * n + place[None, :]
        tl.store(mine + split * rows * n, total, mask=mask)
        # All of this program's parts are written before its arrival is counted.
        tl.debug_barrier()
        counter = arrivals + tl.program_id(2) * tiles + tile
        last = tl.atomic_add(counter, 1, sem="acq_rel") == splits - 1
        if last:
            total = tl.zeros((block_m, block_n), tl.float32)
            for part in tl.static_range(splits):
                total += tl.load(mine + part * rows * n, mask=mask, other=0.0, cache_modifier=".cg")
            tl.store(counter, 0)
    if last:
        target = out + m[:, None] * out_stride
        if form == 0:
            tl.store(target + place[None, :], total.to(out.dtype.element_ty), mask=mask)
        elif form == 1:
            total += tl.load(residual + m[:, None] * residual_stride + place[None, :], mask=mask, other=0.0).to(
                tl.float32
            )
            tl.store(target + place[None, :], total.to(out.dtype.element_ty), mask=mask)
        elif form == 2:
            gated = total * tl.sigmoid(total) * pair_total
            tl.store(target + place[None, :], gated.to(out.dtype.element_ty), mask=mask)
        else:
            position = tl.load(positions + m, mask=row_valid, other=0)
            angle = position[:, None] * head_dim + place[None, :]
            turned = mask & (head < turned_heads)
            c = tl.load(cos + angle, mask=turned, other=1.0).to(tl.float32)
            s = tl.load(sin + angle, mask=turned, other=0.0).to(tl.float32)
            tl.store(target + first[None, :], (total * c - pair_total * s).to(out.dtype.element_ty), mask=mask)
            tl.store(target + second[None, :], (pair_total * c + total * s).to(out.dtype.element_ty), mask=mask)


class Products:
    """Launches products on one device; owns the scratch memory of those that are split. For one stream at a time.

    `overlap` is programmatic dependent launch (launching.py); `tilings` overrides the built-in choice, by the key that
    `tiling_key` makes.
    """

    def __init__(self, device: torch.device, *, overlap: bool = False, scratch_bytes: int = 16 << 20) -> None:
        self.overlap = overlap
        self.tilings: dict[tuple[Form, int, int, int], Tiling] = {}
        self._partial = torch.empty(scratch_bytes // 4, dtype=torch.float32, device=device)
        self._arrivals = torch.zeros(4096, dtype=torch.int32, device=device)

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        form: Form = Form.PLAIN,
        norm: Tensor | None = None,
        eps: float = 0.0,
        residual: Tensor | None = None,
        out: Tensor | None = None,
        turn: Turn | None = None,
    ) -> Tensor:
        """x (rows, k) and weight (columns, k), contiguous in k; `out` may be `residual`. Returns `out`.

        `norm` is the weight of an RMS norm of x. Columns are halved by the gated form.
        """
        rows, k = x.shape
        columns = weight.shape[0]
        paired = form in (Form.GATED, Form.ROTARY)
        n = columns // 2 if paired else columns
        if out is None:
            out = x.new_empty((rows, columns if form is Form.ROTARY else n))
        head_dim = turn.head_dim if turn is not None else 2
        tiling = self.tilings.get((form, n, k, _padded(rows))) or choose_tiling(form, rows, n, k)
        if form is Form.ROTARY:
            tiles = (columns // head_dim) * triton.cdiv(head_dim // 2, tiling.columns)
        else:
            tiles = triton.cdiv(n, tiling.columns)
        row_tiles = triton.cdiv(rows, tiling.rows)
        lines = triton.next_power_of_2(triton.cdiv(triton.cdiv(k, tiling.splits) * weight.itemsize, 128))
        _product[(tiles, tiling.splits, row_tiles)](
            x,
            weight,
            out,
            norm if norm is not None else x,
            residual if residual is not None else x,
            turn.positions if turn is not None else self._arrivals,
            turn.cos if turn is not None else x,
            turn.sin if turn is not None else x,
            self._partial,
            self._arrivals,
            rows,
            x.stride(0),
            out.stride(0),
            residual.stride(0) if residual is not None else 0,
            eps,
            n=n,
            k=k,
            form=int(form),
            normed=norm is not None,
            head_dim=head_dim,
            turned_heads=turn.heads if turn is not None else 0,
            block_m=tiling.rows,
            block_n=tiling.columns,
            block_k=tiling.inner,
            splits=tiling.splits,
            overlap=self.overlap,
            ahead=lines if self.overlap else 0,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **({"launch_pdl": True} if self.overlap else {}),
        )
        return out


@dataclass(frozen=True, slots=True)
class Turn:
    """Rotary embedding of the first `heads` heads: tables (positions, 1, head_dim), and each row's position."""

    positions: Tensor
    cos: Tensor
    sin: Tensor
    heads: int
    head_dim: int


def _padded(rows: int) -> int:
    """Rows of a tile: one, or a power of two from 16 to 64."""
    return 1 if rows == 1 else min(64, max(16, triton.next_power_of_2(rows)))


def choose_tiling(form: Form, rows: int, n: int, k: int) -> Tiling:
    """Tilings that measured well on an H200 (docs/benchmarks.md)."""
    block_m = _padded(rows)
    paired = form in (Form.GATED, Form.ROTARY)
    if block_m == 1:
        inner = min(1024, triton.next_power_of_2(k))
        return Tiling(1, 4 if not paired else 2, inner, warps=4)
    inner = min(128, max(16, triton.next_power_of_2(k)))
    if form is Form.GATED:
        return Tiling(block_m, 64 if n >= 4096 else 16, inner, stages=4)
    if form is Form.ROTARY:
        return Tiling(block_m, 16, inner, stages=4)
    splits = max(1, (8 if k >= 4096 else 4 if k >= 2048 and n <= 2048 else 1) // triton.cdiv(rows, block_m))
    return Tiling(block_m, 64 if splits > 1 else 16, inner, splits=splits, stages=4)
