"""Activations to float8 in two passes over them: the largest magnitude, then the values.

The bytes and the scale are those of `engine/quant/float8.py`: divisions round to nearest, as IEEE says.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
# Programs of the first pass: each reads many blocks, so that few of them have to agree on one number.
_READERS = 1024


@triton.jit
def _largest(x, largest, count, block: tl.constexpr):
    found = tl.zeros((block,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * block
    for at in range(first, count, tl.num_programs(0) * block):
        place = at + tl.arange(0, block)
        value = tl.abs(tl.load(x + place, mask=place < count, other=0.0).to(tl.float32))
        found = tl.maximum(found, value, propagate_nan=tl.PropagateNan.ALL)
    # Floats that are not negative are ordered as their bits are, and NaN above all.
    bits = tl.max(found.to(tl.int32, bitcast=True), 0)
    tl.atomic_max(largest, bits)


@triton.jit
def _convert(x, largest, out, scale_out, count, most: tl.constexpr, block: tl.constexpr):
    scale = tl.math.div_rn(tl.load(largest).to(tl.float32, bitcast=True), most)
    scale = tl.where(scale == 0.0, 1.0, scale)
    reciprocal = tl.math.div_rn(1.0, scale)
    if tl.program_id(0) == 0:
        tl.store(scale_out, scale)
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    value = tl.load(x + place, mask=place < count, other=0.0).to(tl.float32) * reciprocal
    value = tl.minimum(tl.maximum(value, -most), most)
    tl.store(out + place, value.to(tl.float8e4nv), mask=place < count)


def to_float8(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x`, not empty, to float8 e4m3 in its shape, and the scale, float32 (1,)."""
    x = x.contiguous()
    largest = torch.zeros(1, dtype=torch.int32, device=x.device)
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(1, dtype=torch.float32, device=x.device)
    count, most = x.numel(), float(torch.finfo(torch.float8_e4m3fn).max)
    blocks = triton.cdiv(count, _BLOCK)
    _largest[(min(blocks, _READERS),)](x, largest, count, block=_BLOCK, num_warps=8)
    _convert[(blocks,)](x, largest, out, scale, count, most=most, block=_BLOCK, num_warps=8)
    return out, scale
