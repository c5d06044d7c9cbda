"""Float8 on tensor cores: the bytes of the CPU, and products near its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from streamsynth.engine.kernels.float8 import to_float8
from streamsynth.engine.quant.convert import quantise_linears
from streamsynth.engine.quant.float8 import quantised
from streamsynth.engine.quant.linear import Float8Linear
from streamsynth.engine.quant.recipe import Recipe

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def drawn(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 3e4])
def test_weights_have_the_same_bytes_wherever_they_are_quantised(dtype: torch.dtype, scale: float) -> None:
    weight = drawn(1000, 1003, dtype=dtype, scale=min(scale, 1e4) if dtype is torch.float16 else scale)
    here, there = quantised(weight), quantised(weight.to(CUDA))
    assert torch.equal(here.scale, there.scale.cpu())
    assert torch.equal(here.values.view(torch.int8), there.values.view(torch.int8).cpu())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (64, 4096), (5000, 5120)])
def test_activations_have_the_bytes_of_the_definition(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = drawn(*shape, dtype=dtype).to(CUDA)
    expected = quantised(x)
    values, scale = to_float8(x)
    assert torch.equal(scale, expected.scale)
    assert torch.equal(values.view(torch.int8), expected.values.view(torch.int8))
    assert torch.equal(to_float8(x.t())[0].view(torch.int8), expected.values.t().contiguous().view(torch.int8))


def test_zeros_and_what_is_not_finite_are_seen() -> None:
    values, scale = to_float8(torch.zeros(10, device=CUDA))
    assert scale.item() == 1
    assert not values.float().any()
    x = torch.ones(9000, device=CUDA, dtype=torch.bfloat16)
    x[7777] = torch.nan
    assert to_float8(x)[1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(5120, 1280), (33, 12)])
def test_a_layer_gives_what_it_gives_on_the_cpu(dtype: torch.dtype, bias: bool, shape: tuple[int, int]) -> None:
    """But for the order of sums and the rounding of the result; sizes that tensor cores do not take too."""
    torch.manual_seed(0)
    linear = nn.Linear(*shape, bias=bias, dtype=dtype)
    layer, x = Float8Linear.of(linear, "layer"), drawn(7, 3, shape[0], dtype=dtype)
    with torch.inference_mode():
        here = layer(x).double()
        there = layer.to(CUDA)(x.to(CUDA))
    assert (there.dtype, there.shape) == (dtype, here.shape)
    # Tensor cores add float8 products in fewer bits than float32 has.
    assert float((there.cpu().double() - here).norm() / here.norm()) < 5e-3


@pytest.mark.parametrize("stay", [False, True])
def test_quantising_takes_one_weight_at_a_time_on_the_device(stay: bool) -> None:
    """V66: a model that is loaded and quantised there peaks at what it ends at and one layer's working memory."""
    model = nn.Sequential(*(nn.Linear(2048, 2048, dtype=torch.bfloat16) for _ in range(16)))
    torch.cuda.reset_peak_memory_stats(CUDA)
    before = torch.cuda.memory_allocated(CUDA)
    quantise_linears(model, Recipe(), CUDA, stay=stay)
    assert model[3].weight_bytes.device.type == ("cuda" if stay else "cpu")
    model.to(CUDA)
    torch.cuda.synchronize()
    steady = torch.cuda.memory_allocated(CUDA) - before
    peak = torch.cuda.max_memory_allocated(CUDA) - before
    # One weight in bfloat16 and in float8, and pieces of it in float32.
    assert peak < steady + 3 * model[0].weight_bytes.nbytes + (100 << 20)
    assert steady < 1.02 * 16 * model[0].weight_bytes.nbytes + (1 << 20)
