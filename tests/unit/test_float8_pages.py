"""Keys and values in float8 pages: what they take, and how far off they are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from talker_batch import PAGE_SIZE, SMALL

from streamsynth.engine.attention import PageMemory, QuantisedPageMemory
from streamsynth.engine.kv import fp8
from streamsynth.engine.table_attention import TableAttention
from streamsynth.models.csm.random_weights import random_talker


@given(st.integers(0, 2**32 - 1), st.floats(-10.0, 10.0))
def test_an_element_is_off_by_at_most_a_sixteenth_of_itself(seed: int, magnitude: float) -> None:
    """Or by 2^-10 of its scale, where it is that small."""
    tokens = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(seed)) * 10.0**magnitude
    tokens = tokens.clamp(-60_000 * 448, 60_000 * 448)
    quantised, scales = fp8.quantise(tokens)
    off = (fp8.dequantise(quantised, scales, torch.float32) - tokens).abs()
    # The largest may have been cut by the rounding of the scale, by 2^-11 of itself.
    assert (off <= tokens.abs() * 2.0**-4 + scales.float()[..., None] * 2.0**-10).all()


def test_zeros_stay_zeros() -> None:
    quantised, scales = fp8.quantise(torch.zeros(3, 8))
    assert (fp8.dequantise(quantised, scales, torch.float32) == 0).all()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_float8_pages_take_at_most_55_hundredths_of_bfloat16(head_dim: int) -> None:
    shape = {"layers": 2, "page_size": 16, "kv_heads": 8, "head_dim": head_dim}
    plain = PageMemory.page_bytes(**shape, dtype=torch.bfloat16)
    float8 = QuantisedPageMemory.page_bytes(**shape, dtype=torch.bfloat16)
    assert float8 <= 0.55 * plain
    for kind, nbytes in ((PageMemory, plain), (QuantisedPageMemory, float8)):
        memory = kind(**shape, pages=3, like=torch.zeros(1, dtype=torch.bfloat16))
        parts = [memory.keys, memory.values, memory.key_scales, memory.value_scales]
        assert sum(part.nbytes for part in parts if part is not None) == 3 * nbytes


@torch.inference_mode()
def test_hidden_states_over_float8_pages_stay_within_two_hundredths() -> None:
    """In relative norm, after 64 positions through three layers."""
    talker = random_talker(SMALL)
    inputs = torch.randint(40, (64, 5), generator=torch.Generator().manual_seed(0))
    inputs[:, 0] = -1
    positions, owners = torch.arange(64), torch.zeros(64, dtype=torch.int64)
    tables = torch.arange(1, 9, dtype=torch.int32)[None]

    def hidden(kind: type[PageMemory]) -> torch.Tensor:
        memory = kind(layers=3, pages=9, page_size=PAGE_SIZE, kv_heads=2, head_dim=16, like=talker.projector.weight)
        attention = TableAttention(memory, positions, owners, tables, alone=False)
        return talker.trunk(talker.embed(inputs), attention)

    exact = hidden(PageMemory)
    assert float((hidden(QuantisedPageMemory) - exact).norm() / exact.norm()) < 0.02
