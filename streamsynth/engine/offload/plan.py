"""Which modules of a model come and go, in which order, and by which of their methods they are entered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from torch import nn

from streamsynth.errors import invalid_value

# A list with less than this share of the bytes of the largest one stays on the device: embedders and the like.
_WORTH_MOVING = 0.02


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """`blocks` are paths of modules. If `ordered`, that is the order in which a pass enters them, and any other raises
    INTERNAL_ERROR with both names; else the first pass teaches it. A pass may end early, after any block.

    `entries` are the methods, dotted paths below a block, that need its weights: all that the model calls from outside.
    `may_skip`: a pass may leave out blocks in the middle.
    """

    blocks: tuple[str, ...]
    entries: tuple[str, ...] = ("forward",)
    ordered: bool = True
    may_skip: bool = False

    def __post_init__(self) -> None:
        if not self.blocks:
            raise invalid_value("blocks", self.blocks, "the path of at least one module")
        if len(set(self.blocks)) < len(self.blocks):
            raise invalid_value("blocks", self.blocks, "each path once")
        for inner in self.blocks:
            outer = next((path for path in self.blocks if inner.startswith(f"{path}.")), None)
            if outer is not None:
                raise invalid_value("blocks", inner, f"outside of {outer}, which is a block too")

    def modules(self, model: nn.Module) -> list[nn.Module]:
        """Raises INVALID_VALUE for a path that the model does not have."""
        known = dict(model.named_modules())
        for path in self.blocks:
            if path not in known:
                raise invalid_value("blocks", path, f"a module of {type(model).__name__}")
        return [known[path] for path in self.blocks]


def find_plan(model: nn.Module) -> OffloadPlan:
    """The outermost module lists, small ones left out; their order is learned. Raises INVALID_VALUE for none."""
    lists = {path: (each, module_bytes(each)) for path, each in _outermost_lists(model, "")}
    largest = max((size for _, size in lists.values()), default=0)
    if largest == 0:
        raise invalid_value("model", type(model).__name__, "one with a list of blocks, or come with a plan")
    blocks = [
        f"{path}.{name}"
        for path, (each, size) in lists.items()
        if size >= _WORTH_MOVING * largest
        for name, block in each.named_children()
        if module_bytes(block)
    ]
    return OffloadPlan(tuple(blocks), ordered=False)


def module_bytes(module: nn.Module) -> int:
    """Of the parameters."""
    return sum(parameter.nbytes for parameter in module.parameters())


def _outermost_lists(module: nn.Module, prefix: str) -> list[tuple[str, nn.ModuleList]]:
    found: Sequence[list[tuple[str, nn.ModuleList]]] = [
        [(prefix + name, child)] if isinstance(child, nn.ModuleList) else _outermost_lists(child, f"{prefix}{name}.")
        for name, child in module.named_children()
    ]
    return list(chain.from_iterable(found))
