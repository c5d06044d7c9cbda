"""x @ w.T for few rows, with what surrounds it in a decoder layer: RMS norm before; gate, rotary turn or sum after.

Few rows make a product a matter of reading the weights once. One or two are summed without tensor cores, and normed on
the way. More are padded to a tile of tensor cores: there the norm is split. Whoever writes x also writes x times the
norm's weight and the squares of x, added up over a tile; the product is scaled at its end. Where the columns are too
few to occupy the chip, the inner dimension is split, and a second kernel adds the parts up. Both sides come by tensor
descriptors, which Hopper copies without its threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from streamsynth.engine.kernels.launching import let_next_start, send_ahead, wait_for_previous

FEW = 2
"""Rows that are summed without tensor cores."""


class Form(IntEnum):
    """What becomes of the product: stored; added to a residual; SiLU of the first half times the second; turned."""

    PLAIN = 0
    RESIDUAL = 1
    GATED = 2
    ROTARY = 3


@dataclass(frozen=True, slots=True)
class Tiling:
    """The shape of one program's work. `columns` counts pairs of columns in the gated and the rotary form. Of its share
    of each row of the weights, the first `ahead` numbers go to L2 while the kernel before still runs."""

    rows: int
    columns: int
    inner: int
    splits: int = 1
    warps: int = 4
    stages: int = 3
    ahead: int = 0


@triton.jit
def _columns(tile, n: tl.constexpr, form: tl.constexpr, head_dim: tl.constexpr, block_n: tl.constexpr):
    """Of a tile: its columns of the output, how many exist, the first of its rows of the weights (two), the head."""
    if form == 3:
        half: tl.constexpr = head_dim // 2
        per_head: tl.constexpr = (half + block_n - 1) // block_n
        head = tile // per_head
        begin = (tile % per_head) * block_n
        count = tl.minimum(block_n, half - begin)
        first = head * head_dim + begin
        second = first + half
    else:
        head = 0
        begin = tile * block_n
        count = tl.minimum(block_n, n - begin)
        first = begin
        second = begin + n
    return begin, count, first, second, head


@triton.jit
def _finish(
    total,
    pair_total,
    place,
    first,
    second,
    head,
    mask,
    m,
    row_valid,
    out,
    residual,
    positions,
    cos,
    sin,
    next_norm,
    next_scaled,
    next_squares,
    tile,
    rows,
    out_stride,
    residual_stride,
    n: tl.constexpr,
    form: tl.constexpr,
    head_dim: tl.constexpr,
    turned_heads: tl.constexpr,
    prepares: tl.constexpr,
):
    dtype = out.dtype.element_ty
    target = out + m[:, None] * out_stride
    if form == 0:
        tl.store(target + place[None, :], total.to(dtype), mask=mask)
    elif form == 1:
        before = tl.load(residual + m[:, None] * residual_stride + place[None, :], mask=mask, other=0.0)
        summed = (total + before.to(tl.float32)).to(dtype)
        tl.store(target + place[None, :], summed, mask=mask)
        if prepares:
            wide = tl.where(mask, summed.to(tl.float32), 0.0)
            weight = tl.load(next_norm + place, mask=place < n, other=0.0).to(tl.float32)
            tl.store(next_scaled + m[:, None] * n + place[None, :], (wide * weight[None, :]).to(dtype), mask=mask)
            tl.store(next_squares + tile * rows + m, tl.sum(wide * wide, 1), mask=row_valid)
    elif form == 2:
        tl.store(target + place[None, :], (total * tl.sigmoid(total) * pair_total).to(dtype), mask=mask)
    else:
        position = tl.load(positions + m, mask=row_valid, other=0)
        angle = position[:, None] * head_dim + place[None, :]
        turned = mask & (head < turned_heads)
        c = tl.load(cos + angle, mask=turned, other=1.0).to(tl.float32)
        s = tl.load(sin + angle, mask=turned, other=0.0).to(tl.float32)
        tl.store(target + first[None, :], (total * c - pair_total * s).to(dtype), mask=mask)
        tl.store(target + second[None, :], (pair_total * c + total * s).to(dtype), mask=mask)


@triton.jit
def _two_rows(first, second, m, block_m: tl.constexpr):
    """(block_m, n) of one or two vectors (n,)."""
    both = first[None, :]
    if block_m == 2:
        both = tl.where(m[:, None] == 0, both, second[None, :])
    return both


@triton.jit(do_not_specialize=["rows"])
def _few(
    x,
    w,
    out,
    norm,
    residual,
    positions,
    cos,
    sin,
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
    overlap: tl.constexpr,
    policy: tl.constexpr,
):
    """`n` counts output columns (pairs of them in the gated and the rotary form); w is (rows of weights, k)."""
    let_next_start(overlap)
    paired: tl.constexpr = form >= 2
    tile = tl.program_id(0)
    begin, count, first_row, second_row, head = _columns(tile, n, form, head_dim, block_n)
    wait_for_previous(overlap)
    column = tl.arange(0, block_n)
    valid = column < count
    place = begin + column
    first = first_row + column
    second = second_row + column
    m = tl.arange(0, block_m)
    row_valid = m < rows
    inner = tl.arange(0, block_k)
    # Of each row its sums, its second half's, and those of its squares.
    sums = tl.zeros((block_n, block_k), tl.float32)
    pair_sums = tl.zeros((block_n, block_k), tl.float32)
    square_sums = tl.zeros((block_k,), tl.float32)
    other_sums = tl.zeros((block_n, block_k), tl.float32)
    other_pair_sums = tl.zeros((block_n, block_k), tl.float32)
    other_square_sums = tl.zeros((block_k,), tl.float32)
    for start in tl.static_range(0, k, block_k):
        at = start + inner
        inside = at < k
        mask = valid[:, None] & inside[None, :]
        weights = tl.load(w + first[:, None] * k + at[None, :], mask=mask, other=0.0, eviction_policy=policy).to(
            tl.float32
        )
        if paired:
            pair_weights = tl.load(
                w + second[:, None] * k + at[None, :], mask=mask, other=0.0, eviction_policy=policy
            ).to(tl.float32)
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if normed:
            scale = tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
            square_sums += values * values
            values *= scale
        sums += weights * values[None, :]
        if paired:
            pair_sums += pair_weights * values[None, :]
        if block_m == 2:
            values = tl.load(x + x_stride + at, mask=inside, other=0.0).to(tl.float32)
            if normed:
                other_square_sums += values * values
                values *= scale
            other_sums += weights * values[None, :]
            if paired:
                other_pair_sums += pair_weights * values[None, :]
    total = _two_rows(tl.sum(sums, 1), tl.sum(other_sums, 1), m, block_m)
    pair_total = _two_rows(tl.sum(pair_sums, 1), tl.sum(other_pair_sums, 1), m, block_m)
    if normed:
        squares = _two_rows(tl.sum(square_sums, 0)[None], tl.sum(other_square_sums, 0)[None], m, block_m)
        factor = tl.rsqrt(squares / k + eps)
        total *= factor
        pair_total *= factor
    mask = row_valid[:, None] & valid[None, :]
    _finish(
        total, pair_total, place, first, second, head, mask, m, row_valid, out, residual, positions, cos, sin,
        x, x, x, tile, rows, out_stride, residual_stride, n, form, head_dim, turned_heads, False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "parts"])
def _many(
    x_tiles,
    w_tiles,
    w,
    out,
    squares,
    residual,
    positions,
    cos,
    sin,
    next_norm,
    next_scaled,
    next_squares,
    partial,
    rows,
    out_stride,
    residual_stride,
    squares_stride,
    squares_step,
    parts,
    eps,
    n: tl.constexpr,
    k: tl.constexpr,
    form: tl.constexpr,
    block_parts: tl.constexpr,
    head_dim: tl.constexpr,
    turned_heads: tl.constexpr,
    prepares: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    splits: tl.constexpr,
    ahead: tl.constexpr,
    threads: tl.constexpr,
    overlap: tl.constexpr,
):
    """As `_few`. With `block_parts`, x is scaled by a norm's weight; `parts` of `squares` add up to those of a row."""
    let_next_start(overlap)
    paired: tl.constexpr = form >= 2
    tile = tl.program_id(0)
    begin, count, first_row, second_row, head = _columns(tile, n, form, head_dim, block_n)
    span: tl.constexpr = ((k + splits - 1) // splits + block_k - 1) // block_k * block_k
    inner_begin = tl.program_id(1) * span
    if overlap and ahead > 0:
        # Every thread sends a piece of a row.
        pieces: tl.constexpr = threads // block_n
        piece: tl.constexpr = ahead // pieces
        nbytes: tl.constexpr = piece * w.dtype.element_ty.primitive_bitwidth // 8
        thread = tl.arange(0, threads)
        mine = w + (first_row + thread // pieces) * k + inner_begin + thread % pieces * piece
        send_ahead(mine, nbytes)
        if paired:
            send_ahead(mine + (second_row - first_row) * k, nbytes)
    wait_for_previous(overlap)
    column = tl.arange(0, block_n)
    valid = column < count
    place = begin + column
    first = first_row + column
    second = second_row + column
    row_begin = tl.program_id(2) * block_m
    m = row_begin + tl.arange(0, block_m)
    row_valid = m < rows
    if block_parts > 0:
        part = tl.arange(0, block_parts)
        squares_at = squares + part[:, None] * squares_stride + m[None, :] * squares_step
        sums = tl.load(squares_at, mask=(part < parts)[:, None] & row_valid[None, :], other=0.0)
    total = tl.zeros((block_m, block_n), tl.float32)
    pair_total = tl.zeros((block_m, block_n), tl.float32)
    # What is read beyond a matrix is zero; columns beyond a tile's count are not stored.
    for start in range(0, span, block_k):
        at = inner_begin + start
        values = x_tiles.load([row_begin, at])
        total = tl.dot(values, w_tiles.load([first_row, at]).T, total, input_precision="ieee")
        if paired:
            pair_total = tl.dot(values, w_tiles.load([second_row, at]).T, pair_total, input_precision="ieee")
    mask = row_valid[:, None] & valid[None, :]
    if splits > 1:
        tl.store(partial + (tl.program_id(1) * rows + m[:, None]) * n + place[None, :], total, mask=mask)
    else:
        if block_parts > 0:
            factor = tl.rsqrt(tl.sum(sums, 0) / k + eps)[:, None]
            total *= factor
            pair_total *= factor
        _finish(
            total, pair_total, place, first, second, head, mask, m, row_valid, out, residual, positions, cos, sin,
            next_norm, next_scaled, next_squares, tile, rows, out_stride, residual_stride,
            n, form, head_dim, turned_heads, prepares,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _add_up(
    partial,
    x,
    norm,
    scaled,
    squares,
    rows,
    n: tl.constexpr,
    splits: tl.constexpr,
    block_n: tl.constexpr,
    overlap: tl.constexpr,
):
    """Add the parts of a split product to x (rows, n), and begin the norm that follows."""
    let_next_start(overlap)
    row = tl.program_id(0)
    at = tl.arange(0, block_n)
    inside = at < n
    weight = tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(overlap)
    total = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    for split in tl.static_range(splits):
        total += tl.load(partial + (split * rows + row) * n + at, mask=inside, other=0.0)
    summed = total.to(x.dtype.element_ty)
    tl.store(x + row * n + at, summed, mask=inside)
    wide = summed.to(tl.float32)
    tl.store(scaled + row * n + at, (wide * weight).to(scaled.dtype.element_ty), mask=inside)
    tl.store(squares + row, tl.sum(wide * wide, 0))


@triton.jit(do_not_specialize=["rows"])
def _prepare(x, norm, scaled, squares, rows, x_stride, k: tl.constexpr, block_k: tl.constexpr, overlap: tl.constexpr):
    let_next_start(overlap)
    row = tl.program_id(0)
    at = tl.arange(0, block_k)
    inside = at < k
    weight = tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(overlap)
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(scaled + row * k + at, (values * weight).to(scaled.dtype.element_ty), mask=inside)
    tl.store(squares + row, tl.sum(values * values, 0))


@dataclass(frozen=True, slots=True)
class Turn:
    """Rotary embedding of the first `heads` heads: tables (positions, 1, head_dim), and each row's position."""

    positions: Tensor
    cos: Tensor
    sin: Tensor
    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Normed:
    """Rows x under an RMS norm that is not computed yet: the product that reads them does it.

    For many rows `scaled` is x times the norm's weight, and `squares` (parts, rows) add up to each row's.
    """

    x: Tensor
    weight: Tensor
    eps: float
    scaled: Tensor | None = None
    squares: Tensor | None = None

    def every_second(self) -> Normed:
        """Rows 1, 3, 5 and so on."""
        scaled = None if self.scaled is None else self.scaled[1::2]
        squares = None if self.squares is None else self.squares[:, 1::2]
        return Normed(self.x[1::2], self.weight, self.eps, scaled, squares)


class Products:
    """Launches products on one device; owns the scratch memory of those that are split. For one stream at a time.

    `overlap` is programmatic dependent launch (launching.py); `tilings` overrides the built-in choice.
    """

    def __init__(self, device: torch.device, *, overlap: bool = False, scratch_bytes: int = 16 << 20) -> None:
        self.overlap = overlap
        self.tilings: dict[tuple[Form, int, int, int], Tiling] = {}
        """By form, n, k and `tile_rows`."""
        self._partial = torch.empty(scratch_bytes // 4, dtype=torch.float32, device=device)
        self._nothing = torch.zeros(16, dtype=torch.int64, device=device)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Normed:
        """Begin an RMS norm of x (rows, k)."""
        rows, k = x.shape
        if rows <= FEW:
            return Normed(x, weight, eps)
        scaled = torch.empty((rows, k), dtype=x.dtype, device=x.device)
        squares = torch.empty((1, rows), dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(k)
        _prepare[(rows,)](
            x, weight, scaled, squares, rows, x.stride(0), k=k, block_k=block, overlap=self.overlap, **self._launch(4)
        )
        return Normed(x, weight, eps, scaled, squares)

    def plain(self, x: Normed | Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """x (rows, k) and weight (n, k), both contiguous in k; returns `out` (rows, n)."""
        n = weight.shape[0]
        out = _rows_of(x).new_empty((len(_rows_of(x)), n)) if out is None else out
        self._run(x, weight, out, Form.PLAIN, n)
        return out

    def gated(self, x: Normed | Tensor, weight: Tensor) -> Tensor:
        """weight (2 * n, k); SiLU of the first n columns times the others, (rows, n)."""
        n = weight.shape[0] // 2
        out = _rows_of(x).new_empty((len(_rows_of(x)), n))
        self._run(x, weight, out, Form.GATED, n)
        return out

    def turned(self, x: Normed | Tensor, weight: Tensor, turn: Turn) -> Tensor:
        """weight (all heads * head_dim, k); the first heads of the product are turned."""
        out = _rows_of(x).new_empty((len(_rows_of(x)), weight.shape[0]))
        self._run(x, weight, out, Form.ROTARY, weight.shape[0] // 2, turn=turn)
        return out

    def add(self, x: Tensor, weight: Tensor, residual: Tensor, norm: Tensor, eps: float) -> Normed:
        """Add the product to `residual` (rows, n), contiguous, in place; returns it under the norm that follows."""
        n = weight.shape[0]
        if len(x) <= FEW:
            self._run(x, weight, residual, Form.RESIDUAL, n, residual=residual)
            return Normed(residual, norm, eps)
        rows, tiling = len(x), self._tiling(Form.RESIDUAL, x, n)
        parts = triton.cdiv(n, tiling.columns) if tiling.splits == 1 else 1
        squares = torch.empty((parts, rows), dtype=torch.float32, device=x.device)
        following = Normed(residual, norm, eps, torch.empty_like(residual), squares)
        self._run(x, weight, residual, Form.RESIDUAL, n, residual=residual, following=following)
        if tiling.splits > 1:
            shape = {"n": n, "splits": tiling.splits, "block_n": triton.next_power_of_2(n), "overlap": self.overlap}
            _add_up[(rows,)](self._partial, residual, norm, following.scaled, squares, rows, **shape, **self._launch(8))
        return following

    def _tiling(self, form: Form, x: Tensor, n: int) -> Tiling:
        rows, k = x.shape
        itemsize = x.element_size()
        return self.tilings.get((form, n, k, tile_rows(rows))) or choose_tiling(form, rows, n, k, itemsize)

    def _launch(self, warps: int, stages: int = 3) -> dict[str, object]:
        return {"num_warps": warps, "num_stages": stages, **({"launch_pdl": True} if self.overlap else {})}

    def _run(
        self,
        given: Normed | Tensor,
        weight: Tensor,
        out: Tensor,
        form: Form,
        n: int,
        *,
        residual: Tensor | None = None,
        turn: Turn | None = None,
        following: Normed | None = None,
    ) -> None:
        normed = given if isinstance(given, Normed) else None
        x = _rows_of(given)
        rows, k = x.shape
        tiling = self._tiling(form, x, n)
        assert tiling.splits == 1 or form is Form.RESIDUAL
        assert tiling.splits * rows * n <= self._partial.numel()
        head_dim = turn.head_dim if turn is not None else 2
        tiles = triton.cdiv(n, tiling.columns)
        if turn is not None:
            tiles = weight.shape[0] // head_dim * triton.cdiv(head_dim // 2, tiling.columns)
        around = (
            residual if residual is not None else x,
            turn.positions if turn is not None else self._nothing,
            turn.cos if turn is not None else x,
            turn.sin if turn is not None else x,
        )
        shape = {
            "n": n,
            "k": k,
            "form": int(form),
            "head_dim": head_dim,
            "turned_heads": turn.heads if turn is not None else 0,
            "block_m": tiling.rows,
            "block_n": tiling.columns,
            "block_k": tiling.inner,
            "overlap": self.overlap,
            **self._launch(tiling.warps, tiling.stages),
        }
        residual_stride = residual.stride(0) if residual is not None else 0
        eps = normed.eps if normed is not None else 0.0
        if rows <= FEW:
            norm = normed.weight if normed is not None else x
            strides = [rows, x.stride(0), out.stride(0), residual_stride]
            policy = _policy(form, weight.nbytes)
            _few[(tiles,)](
                x, weight, out, norm, *around, *strides, eps, normed=normed is not None, policy=policy, **shape
            )
            return
        squares = self._partial[None, None]
        if normed is not None:
            assert normed.scaled is not None
            assert normed.squares is not None
            x, squares = normed.scaled, normed.squares
        strides = [rows, out.stride(0), residual_stride, squares.stride(0), squares.stride(1)]
        parts = squares.shape[0] if normed is not None else 0
        across = n if turn is None else head_dim // 2
        whole = across % tiling.columns == 0 and k % (tiling.splits * tiling.inner) == 0
        _many[(tiles, tiling.splits, triton.cdiv(rows, tiling.rows))](
            _tiles(x, tiling.rows, tiling.inner),
            _tiles(weight, tiling.columns, tiling.inner),
            weight,
            out,
            squares,
            *around,
            *((following.weight, following.scaled, following.squares) if following is not None else (x, x, x)),
            self._partial,
            *strides,
            parts,
            eps,
            block_parts=parts if parts <= 1 else max(64, triton.next_power_of_2(parts)),
            prepares=following is not None,
            splits=tiling.splits,
            # Nothing is sent of what lies outside of the weights.
            ahead=tiling.ahead if whole else 0,
            threads=32 * tiling.warps,
            **shape,
        )


def _tiles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def _policy(form: Form, nbytes: int) -> str:
    """What L2 does with weights. A depth decoder reads the same ones many times a frame, and they do not all fit: the
    smallest stay, where what is read is soonest waited for, and the largest pass through."""
    if nbytes >= 8 << 20:
        return "evict_first"
    return "evict_last" if form in (Form.RESIDUAL, Form.ROTARY) and nbytes <= 4 << 20 else ""


def _rows_of(given: Normed | Tensor) -> Tensor:
    return given.x if isinstance(given, Normed) else given


def tile_rows(rows: int) -> int:
    """Rows of a tile: those of `_few` as they are, else the 64 of a warp group's product, also where they are fewer."""
    return rows if rows <= FEW else 64


def choose_tiling(form: Form, rows: int, n: int, k: int, itemsize: int = 2) -> Tiling:
    """Tilings that measured well on an H200 in bfloat16 (docs/benchmarks.md). There weights of CSM-1B's backbone have
    a k of 2048, but for down (8192, with an n of 2048); those of its depth decoder 1024, but for down (8192, 1024).
    """
    block_m = tile_rows(rows)
    if block_m <= FEW:
        inner = min(1024, triton.next_power_of_2(k))
        if form is Form.GATED:
            return Tiling(block_m, 8 if k <= 1024 else 4, inner, warps=8 if k <= 1024 else 4)
        return Tiling(block_m, 2 if form is Form.ROTARY else 4, inner)
    if itemsize > 2:
        # Without tensor cores what is multiplied lies in registers.
        splits = 4 if form is Form.RESIDUAL and k >= 2048 and rows <= 2 * block_m else 1
        return Tiling(block_m, 16, 16 if form >= Form.GATED else 32, splits, stages=6)
    deep = min(256, max(16, triton.next_power_of_2(k)))
    inner = min(128, deep)
    if form is Form.GATED:
        # The fewer the rows, the more programs wait for the same lines of x.
        wide = n >= 4096 and (k >= 2048 or rows <= 32)
        return Tiling(block_m, 64 if wide else 32 if n >= 4096 else 16, inner, stages=4 if wide else 3)
    if form is Form.RESIDUAL and k >= 2048 and rows <= 2 * block_m:
        if k < 4096:
            return Tiling(block_m, 32, inner, splits=2, stages=5)
        if n > 1024:
            return Tiling(block_m, 64, inner, splits=4, stages=4)
        return Tiling(block_m, 64, inner, splits=8, stages=5, ahead=2 * inner)
    if k >= 2048:
        return Tiling(block_m, 32, inner, stages=6)
    return Tiling(block_m, 16, deep, stages=4, ahead=0 if form is Form.PLAIN or deep < 256 else deep)
