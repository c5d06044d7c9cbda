"""Keys and values in float8 e4m3: with a float16 scale for each token and head, or a float32 scale for a whole page."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0
"""The largest float8 e4m3 number."""

SMALLEST_SCALE = 2.0**-14
"""The smallest float16 number of full precision: scales below it would be coarse."""


def token_bytes(head_dim: int) -> int:
    """What one token of one head takes, for keys or for values."""
    return head_dim + torch.float16.itemsize


def quantise(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(..., head_dim) to bytes (uint8) of the same shape and scales (...) float16."""
    exact = tokens.float()
    scales = (exact.abs().amax(-1) / LARGEST).clamp_min(SMALLEST_SCALE).half()
    # A scale rounded down leaves the largest just above what float8 holds.
    reduced = (exact / scales.float()[..., None]).clamp(-LARGEST, LARGEST)
    return reduced.to(torch.float8_e4m3fn).view(torch.uint8), scales


def dequantise(quantised: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return (quantised.view(torch.float8_e4m3fn).float() * scales.float()[..., None]).to(dtype)


def quantise_pages(pages: Tensor) -> tuple[Tensor, Tensor]:
    """(pages, page_tokens, heads, head_dim) to bytes (uint8) of the same shape and scales (pages,) float32."""
    exact = pages.float()
    scales = (exact.abs().amax((1, 2, 3)) / LARGEST).clamp_min(SMALLEST_SCALE)
    reduced = (exact / scales[:, None, None, None]).clamp(-LARGEST, LARGEST)
    return reduced.to(torch.float8_e4m3fn).view(torch.uint8), scales
