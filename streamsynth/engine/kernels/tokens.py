"""What a transformer of many tokens does between its products: each kernel reads and writes a token once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_and_norm(
    x,
    change,
    gate,
    scale,
    shift,
    out,
    group_tokens,
    gate_stride,
    scale_stride,
    eps,
    size: tl.constexpr,
    block: tl.constexpr,
    adds: tl.constexpr,
    gated: tl.constexpr,
    modulated: tl.constexpr,
):
    token = tl.program_id(0)
    group = token // group_tokens
    place = tl.arange(0, block)
    valid = place < size
    at = token.to(tl.int64) * size + place
    value = tl.load(x + at, mask=valid, other=0.0)
    if adds:
        given = tl.load(change + at, mask=valid, other=0.0).to(tl.float32)
        if gated:
            given *= tl.load(gate + group * gate_stride + place, mask=valid, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) + given).to(x.dtype.element_ty)
        tl.store(x + at, value, mask=valid)
    value = value.to(tl.float32)
    centred = tl.where(valid, value - tl.sum(value, 0) / size, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred, 0) / size + eps)
    factor = tl.load(scale + group * scale_stride + place, mask=valid, other=0.0).to(tl.float32)
    if modulated:
        factor += 1.0
    offset = tl.load(shift + group * scale_stride + place, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + at, (normed * factor + offset).to(out.dtype.element_ty), mask=valid)


def add_and_norm(
    x: Tensor,
    change: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    *,
    eps: float,
    modulated: bool,
) -> Tensor:
    """Add `change`, times `gate`, to x in place; returns its layer norm, scaled (by 1 more if `modulated`) and shifted.

    x and `change` (rows, tokens, size), contiguous. `gate`, `scale` and `shift` are (size) for all tokens, or (groups,
    size), equal parts of the tokens one after the other, of whatever stride.
    """
    size = x.shape[-1]
    tokens = x.numel() // size
    groups = max([1, *(len(each) for each in (scale, gate) if each is not None and each.dim() == 2)])
    assert scale.stride(-1) == shift.stride(-1) == 1 and scale.shape == shift.shape
    out = torch.empty_like(x)
    _add_and_norm[(tokens,)](
        x,
        x if change is None else change,
        x if gate is None else gate,
        scale,
        shift,
        out,
        tokens // groups,
        0 if gate is None or gate.dim() == 1 else gate.stride(0),
        0 if scale.dim() == 1 else scale.stride(0),
        eps,
        size=size,
        block=triton.next_power_of_2(size),
        adds=change is not None,
        gated=gate is not None,
        modulated=modulated,
        num_warps=4,
    )
    return out


@triton.jit
def _norm_parts(x, weights, out, tokens, x_stride, eps, size: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0)
    part = tl.program_id(1)
    place = tl.arange(0, block)
    valid = place < size
    value = tl.load(x + token.to(tl.int64) * x_stride + part * size + place, mask=valid, other=0.0).to(tl.float32)
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    weight = tl.load(weights + part * size + place, mask=valid, other=0.0).to(tl.float32)
    at = (part * tokens + token).to(tl.int64) * size + place
    tl.store(out + at, (normed * weight).to(out.dtype.element_ty), mask=valid)


def norm_parts(x: Tensor, weights: Tensor, eps: float) -> Tensor:
    """The RMS norm of each of the first parts of x (rows, tokens, parts or more * size), contiguous, with `weights`
    (parts, size): (parts, rows, tokens, size)."""
    parts, size = weights.shape
    rows, tokens, _ = x.shape
    out = x.new_empty(parts, rows, tokens, size)
    _norm_parts[(rows * tokens, parts)](
        x,
        weights,
        out,
        rows * tokens,
        x.stride(1),
        eps,
        size=size,
        block=triton.next_power_of_2(size),
        num_warps=4,
    )
    return out


@triton.jit
def _turn(
    x,
    turns,
    out,
    x_stride,
    out_stride,
    turns_stride,
    size: tl.constexpr,
    head_dim: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0)
    row = tl.program_id(1)
    place = tl.arange(0, block)
    valid = place < size
    pair = tl.arange(0, block // 2) % (head_dim // 2)
    angle = turns + row * turns_stride + token * head_dim + 2 * pair
    cosine, sine = tl.load(angle), tl.load(angle + 1)
    value = tl.load(x + row.to(tl.int64) * x_stride + token * size + place, mask=valid, other=0.0).to(tl.float32)
    first, second = tl.split(tl.reshape(value, (block // 2, 2)))
    turned = tl.interleave(first * cosine - second * sine, first * sine + second * cosine)
    target = out + row.to(tl.int64) * out_stride + token * size + place
    tl.store(target, turned.to(out.dtype.element_ty), mask=valid)


def turn_pairs(x: Tensor, turns: Tensor, out: Tensor) -> None:
    """Turn adjacent pairs of x (rows, tokens, heads, head_dim) into `out`: each row of both is contiguous.

    `turns` (rows or 1, tokens, 1, head_dim / 2) complex64, contiguous.
    """
    rows, tokens, heads, head_dim = x.shape
    size = heads * head_dim
    _turn[(tokens, rows)](
        x,
        torch.view_as_real(turns),
        out,
        x.stride(0),
        out.stride(0),
        0 if len(turns) == 1 else tokens * head_dim,
        size=size,
        head_dim=head_dim,
        block=triton.next_power_of_2(size),
        num_warps=4,
    )
