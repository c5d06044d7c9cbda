"""`quantise_linears`: replace a model's linear layers by float8 ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from streamsynth.engine.quant.linear import Float8Linear
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.errors import invalid_value


@dataclass(frozen=True, slots=True)
class Quantised:
    """Paths of linear layers: those that are float8 now, and those that are not, with the reason."""

    layers: tuple[str, ...]
    left: tuple[tuple[str, str], ...]


def quantise_linears(
    module: nn.Module, recipe: Recipe, device: torch.device | str | None = None, *, stay: bool = False
) -> Quantised:
    """Replace every `nn.Linear` that the recipe does not ignore, in place, one at a time.

    A weight is quantised on `device` (default: where it lies), and goes back to where it was unless it is to `stay`;
    the bytes are the same on every device. Subclasses of `nn.Linear` are left, for they may do something else with
    their weight, and so is a weight that two layers share. To be called before `offload_blocks`. Raises INVALID_VALUE
    where nothing is quantised, for a pattern that ignores nothing, and for a weight that is not finite.
    """
    at = None if device is None else torch.device(device)
    return _replace(module, recipe, lambda linear, path: Float8Linear.of(linear, path, at, stay=stay))


def empty_float8_linears(module: nn.Module, recipe: Recipe) -> Quantised:
    """As `quantise_linears`, but the new layers have no values yet: they are on the meta device."""
    return _replace(module, recipe, lambda linear, _: Float8Linear.empty(linear))


def _replace(module: nn.Module, recipe: Recipe, made: Callable[[nn.Linear, str], Float8Linear]) -> Quantised:
    linears = [(path, each) for path, each in module.named_modules() if isinstance(each, nn.Linear)]
    _check(recipe, [path for path, _ in linears])
    shared = Counter(id(parameter) for each in module.modules() for parameter in each._parameters.values())
    layers: list[str] = []
    left: list[tuple[str, str]] = []
    for path, linear in linears:
        reason = _reason_to_leave(path, linear, recipe, shared[id(linear.weight)] > 1)
        if reason is not None:
            left.append((path, reason))
            continue
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, made(linear, path))
        layers.append(path)
    if not layers:
        raise invalid_value("recipe", recipe.canonical(), f"one that quantises a layer of {type(module).__name__}")
    return Quantised(tuple(layers), tuple(left))


def _reason_to_leave(path: str, linear: nn.Linear, recipe: Recipe, shared: bool) -> str | None:
    if not path:
        return "it is the model itself"
    if recipe.ignores(path):
        return "ignored by the recipe"
    if type(linear) is not nn.Linear:
        return f"a {type(linear).__name__}"
    if not linear.weight.is_floating_point() or linear.weight.element_size() < 2:
        return f"its weight is {linear.weight.dtype}"
    return "its weight is shared" if shared else None


def _check(recipe: Recipe, paths: list[str]) -> None:
    for pattern in recipe.ignored:
        if not any(Recipe(ignored=(pattern,)).ignores(path) for path in paths):
            raise invalid_value("ignored", pattern, "a pattern of a linear layer's path in the model")
