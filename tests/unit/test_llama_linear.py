"""Products and norms of the CPU are the textbook ones, in whatever call and order of memory they are computed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from streamsynth.models.llama.linear import add_product, input_major, order_weights, packed, product
from streamsynth.models.llama.modules import RmsNorm, rotate


@pytest.mark.parametrize("rows", [1, 2, 32, 33])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_that_of_the_exact_numbers(rows: int, bias: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    linear = nn.Linear(48, 80, bias=bias).to(dtype).requires_grad_(False)
    for weight in linear.parameters():
        weight.uniform_(-0.1, 0.1, generator=generator)
    x = torch.randn(rows, 48, generator=generator).to(dtype)
    exact = F.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    order_weights(linear)
    for weight in (linear.weight, packed(linear.weight)):
        made = product(x, weight, linear.bias)
        torch.testing.assert_close(made.double(), exact, **close)
        add_product(made, x, weight, linear.bias)
        torch.testing.assert_close(made.double(), 2 * exact, **close)


def test_the_order_in_memory_changes_no_value() -> None:
    stack = torch.randn(3, 5, 7)
    ordered = input_major(stack)
    assert torch.equal(ordered, stack)
    assert ordered.stride() == (35, 1, 5)
    torch.testing.assert_close(product(torch.ones(2, 7), ordered[1]), product(torch.ones(2, 7), stack[1]))
    rounded = stack.bfloat16()
    assert input_major(rounded) is rounded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_divides_by_the_root_of_the_mean_square(dtype: torch.dtype) -> None:
    norm = RmsNorm(24, 1e-3).to(dtype).requires_grad_(False)
    norm.weight.normal_()
    x = torch.randn(3, 24).to(dtype) * 0.05
    expected = F.rms_norm(x.double(), (24,), norm.weight.double(), 1e-3)
    torch.testing.assert_close(norm(x).double(), expected, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)
    assert norm(x).dtype is dtype


def test_rotation_turns_each_pair_of_halves_by_its_angle() -> None:
    x, angle = torch.randn(5, 2, 8), torch.randn(5, 1, 4)
    turned = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)) * torch.polar(torch.ones_like(angle), angle)
    both = torch.cat((angle, angle), -1)
    torch.testing.assert_close(rotate(x, both.cos(), both.sin()), torch.cat((turned.real, turned.imag), -1))
