"""Pages of latent frames: pages and frames are two units, and float8 keeps within its bound."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from streamsynth.engine.rollout.frame_memory import FrameMemory

LAYERS, HEADS, HEAD_DIM = 2, 3, 8


def memory(*, pages: int, page_tokens: int, quantised: bool = False) -> FrameMemory:
    return FrameMemory(
        layers=LAYERS,
        pages=pages,
        page_tokens=page_tokens,
        heads=HEADS,
        head_dim=HEAD_DIM,
        like=torch.zeros(()),
        quantised=quantised,
    )


def tokens(rows: int, count: int, seed: int) -> Tensor:
    return torch.randn(rows, count, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(seed))


@given(
    page_tokens=st.integers(1, 16),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    frames=st.integers(1, 3),
    rows=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_what_was_stored_comes_back_at_any_picture_size(
    page_tokens: int, height: int, width: int, frames: int, rows: int, seed: int
) -> None:
    """V10: the tokens of a frame need not be a multiple of a page's."""
    frame_tokens = height * width
    per_frame = -(-frame_tokens // page_tokens)
    listed = rows * frames * per_frame
    kept = memory(pages=listed + 1, page_tokens=page_tokens)
    table = (1 + torch.randperm(listed, generator=torch.Generator().manual_seed(seed))).view(rows, -1)
    for layer in range(LAYERS):
        k, v = tokens(rows, frames * frame_tokens, seed + layer), tokens(rows, frames * frame_tokens, seed - layer)
        kept.store(layer, table, k, v, frame_tokens)
        keys, values = kept.gather(layer, table, frame_tokens)
        assert torch.equal(keys, k) and torch.equal(values, v)


def test_frames_are_read_in_the_order_of_the_table() -> None:
    kept = memory(pages=7, page_tokens=4)
    k, v = tokens(1, 18, 0), tokens(1, 18, 1)
    kept.store(0, torch.tensor([[5, 2, 1, 6, 3, 4]]), k, v, 6)
    keys, _ = kept.gather(0, torch.tensor([[3, 4, 5, 2]]), 6)
    assert torch.equal(keys, torch.cat([k[:, 12:], k[:, :6]], 1))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_float8_pages_keep_each_element_within_the_stated_bound(scale: float) -> None:
    kept = memory(pages=3, page_tokens=8, quantised=True)
    k, v = tokens(1, 16, 3) * scale, tokens(1, 16, 4) * scale
    table = torch.tensor([[1, 2]])
    kept.store(1, table, k, v, 16)
    for stored, exact in zip(kept.gather(1, table, 16), (k, v), strict=True):
        largest = exact.view(2, -1).abs().amax(1)
        smallest_step = (largest / 448).repeat_interleave(8)[None, :, None, None] * 2**-10
        assert ((stored - exact).abs() <= torch.maximum(exact.abs() / 16, smallest_step) * 1.001).all()


def test_float8_pages_take_at_most_055_of_the_bytes_of_bfloat16() -> None:
    sizes = {
        quantised: FrameMemory(
            layers=2,
            pages=4,
            page_tokens=120,
            heads=12,
            head_dim=128,
            like=torch.zeros((), dtype=torch.bfloat16),
            quantised=quantised,
        ).nbytes
        for quantised in (False, True)
    }
    assert sizes[True] <= 0.55 * sizes[False]
