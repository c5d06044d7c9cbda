"""Float8 linear layers: their stored bytes, their products, and which layers become one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from offload_models import given, network
from torch import Tensor, nn

from streamsynth.engine.quant.convert import empty_float8_linears, quantise_linears
from streamsynth.engine.quant.float8 import FLOAT8, quantised, quantised_weight
from streamsynth.engine.quant.linear import Float8Linear
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.errors import StreamSynthError

# Half of the distance between neighbours, of a value: three bits of mantissa.
ROUNDING = 2.0**-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_weight_is_the_largest_float8_and_others_are_near(dtype: torch.dtype) -> None:
    weight = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = quantised_weight(weight, "w")
    assert made.values.dtype is FLOAT8
    assert (made.scale.shape, made.scale.dtype) == ((1,), torch.float32)
    assert made.values.float().abs().max() == 448
    error = (made.dequantised() - weight.float()).abs()
    assert bool((error <= ROUNDING * weight.float().abs() + made.scale * 2.0**-10).all())


def test_the_stored_bytes_are_those_of_the_definition() -> None:
    """The scale is max / 448 in float32; a value is its product with the scale's reciprocal, to the nearest even."""
    weight = torch.tensor([[7.0, -3.5, 0.0], [1e-9, 0.4375, 0.0135]])
    made = quantised(weight)
    assert made.scale.item() == 7 / 448
    assert made.values.float().tolist() == [[448.0, -224.0, 0.0], [0.0, 28.0, 0.875]]
    assert made.values.view(torch.uint8).tolist() == [[0x7E, 0xF6, 0x00], [0x00, 0x5E, 0x36]]


def test_zeros_have_a_scale() -> None:
    made = quantised(torch.zeros(3, 4))
    assert made.scale.item() == 1
    assert not made.values.float().any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(value: float) -> None:
    model = network()
    model.blocks[1].up.weight.data[2, 3] = value
    with pytest.raises(StreamSynthError, match=r"blocks\.1\.up\.weight is .* it must be finite"):
        quantise_linears(model, Recipe())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_multiplies_what_it_stores(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(33, 12, bias=bias, dtype=dtype)
    x = torch.randn(2, 5, 33).to(dtype)
    layer = Float8Linear.of(linear, "layer")
    rounded = quantised(x).dequantised()
    expected = F.linear(rounded, layer.float8.dequantised(), None if linear.bias is None else linear.bias.float())
    made = layer(x)
    assert (made.dtype, made.shape) == (dtype, (2, 5, 12))
    assert torch.equal(made, expected.to(dtype))
    exact = linear(x).float()
    assert (made.float() - exact).norm() < 0.05 * exact.norm()


def test_a_layer_keeps_its_bytes_and_its_scale_when_a_model_changes_its_dtype() -> None:
    layer = Float8Linear.of(nn.Linear(8, 4), "layer")
    stored, scale = layer.weight_bytes.clone(), layer.weight_scale.clone()
    layer.to(torch.bfloat16)
    assert torch.equal(layer.weight_bytes, stored)
    assert torch.equal(layer.weight_scale, scale)
    assert layer.bias.dtype is torch.bfloat16
    assert torch.equal(layer.double().float().weight_scale, scale)


def test_a_layer_says_the_dtype_it_replaced_and_has_no_such_weight() -> None:
    layer = Float8Linear.of(nn.Linear(8, 4, dtype=torch.bfloat16), "layer")
    assert (layer.weight.dtype, layer.weight.shape, layer.weight.device.type) == (torch.bfloat16, (4, 8), "cpu")
    with pytest.raises(StreamSynthError, match="the weight is quantised"):
        layer.weight.float()


def test_an_input_that_is_no_wide_float_is_refused() -> None:
    layer = Float8Linear.of(nn.Linear(8, 4), "layer")
    for dtype in (torch.int8, torch.float8_e4m3fn, torch.int64):
        with pytest.raises(StreamSynthError, match=f"x is '{dtype}'"):
            layer(torch.zeros(1, 8).to(dtype))


def test_no_rows_give_no_rows() -> None:
    assert Float8Linear.of(nn.Linear(8, 4), "layer")(torch.zeros(2, 0, 8)).shape == (2, 0, 4)


class Adapter(nn.Linear): ...


def test_every_linear_layer_that_nothing_speaks_against_is_quantised() -> None:
    model = network(3)
    model.blocks[1].up.weight = model.blocks[2].up.weight
    model.last = Adapter(33, 7)
    made = quantise_linears(model, Recipe(ignored=("first", "blocks.0.*")))
    assert made.layers == ("blocks.1.down", "blocks.2.down")
    assert dict(made.left) == {
        "first": "ignored by the recipe",
        "blocks.0.up": "ignored by the recipe",
        "blocks.0.down": "ignored by the recipe",
        "blocks.1.up": "its weight is shared",
        "blocks.2.up": "its weight is shared",
        "last": "a Adapter",
    }
    assert {name for name, each in model.named_modules() if isinstance(each, Float8Linear)} == set(made.layers)
    with torch.inference_mode():
        assert model(given()).isfinite().all()


def test_a_recipe_that_means_nothing_is_refused() -> None:
    with pytest.raises(StreamSynthError, match=r"ignored is 'block\.0\.up'; it must be a pattern of a linear layer"):
        quantise_linears(network(), Recipe(ignored=("block.0.up",)))
    with pytest.raises(StreamSynthError, match="one that quantises a layer of Network"):
        quantise_linears(network(), Recipe(ignored=("*",)))
    with pytest.raises(StreamSynthError, match="method is 'int4'"):
        Recipe(method="int4")  # type: ignore[arg-type]


def test_recipes_that_make_the_same_layers_are_the_same() -> None:
    assert Recipe(ignored=("b", "a", "b")).canonical() == Recipe(ignored=("a", "b")).canonical()
    assert Recipe(ignored=("a",)).canonical() != Recipe(ignored=()).canonical()


def test_layers_without_values_have_the_shapes_of_those_with() -> None:
    def shapes(model: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {name: (tuple(each.shape), each.dtype) for name, each in model.named_parameters()}

    filled, empty = network(), network()
    assert empty_float8_linears(empty, Recipe()) == quantise_linears(filled, Recipe())
    assert shapes(empty) == shapes(filled)


def test_quantising_elsewhere_gives_back_bytes_at_home() -> None:
    def stored(device: str | None) -> dict[str, Tensor]:
        model = network()
        quantise_linears(model, Recipe(), device)
        return dict(model.named_parameters())

    here, there = stored(None), stored("cpu")
    assert all(torch.equal(here[name], there[name]) for name in here)
