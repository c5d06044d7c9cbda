"""The embedding of input positions: a text token's entry, or the sum of a frame's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from streamsynth.engine.kernels.launching import let_next_start, wait_for_previous


@triton.jit
def _embed(
    inputs,
    text_table,
    code_table,
    out,
    codebooks: tl.constexpr,
    vocabulary: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    overlap: tl.constexpr,
):
    let_next_start(overlap)
    token = tl.program_id(0)
    place = tl.program_id(1) * block + tl.arange(0, block)
    valid = place < width
    wait_for_previous(overlap)
    given = inputs + token * (codebooks + 1)
    text = tl.load(given)
    if text >= 0:
        total = tl.load(text_table + text * width + place, mask=valid, other=0.0).to(tl.float32)
    else:
        total = tl.zeros((block,), tl.float32)
        for codebook in range(codebooks):
            entry = tl.load(given + 1 + codebook) + codebook * vocabulary
            total += tl.load(code_table + entry * width + place, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + token * width + place, total.to(out.dtype.element_ty), mask=valid)


def embed_positions(inputs: Tensor, text_table: Tensor, code_table: Tensor, *, overlap: bool = False) -> Tensor:
    """inputs (tokens, 1 + codebooks) int64, contiguous, text negative where there is a frame; to (tokens, width)."""
    tokens, columns = inputs.shape
    width = text_table.shape[-1]
    block = min(256, triton.next_power_of_2(width))
    out = torch.empty((tokens, width), dtype=text_table.dtype, device=inputs.device)
    _embed[(tokens, triton.cdiv(width, block))](
        inputs,
        text_table,
        code_table,
        out,
        codebooks=columns - 1,
        vocabulary=code_table.shape[0] // (columns - 1),
        width=width,
        block=block,
        overlap=overlap,
        num_warps=4,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out
