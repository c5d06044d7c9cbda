"""Hooks on a model's block lists that leave a whole pass out: the first block adds what all of them added last time.

The residual is that of the whole stack, last output minus first input, and is applied once; every other block returns
what it was given. So nothing else of the model has to know.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from streamsynth.engine.diffusion.skipping.policies import Measuring, SkipPolicy, SkipRun
from streamsynth.errors import invalid_value

BLOCK_LISTS = ("blocks", "transformer_blocks", "single_transformer_blocks", "layers", "visual_transformer_blocks")
"""What libraries call the lists through which a denoiser's hidden states go, in order."""

SIGNALS = ("temb", "adaln_input", "timestep")
"""What blocks call the embedding of the time step."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What a block calls its states (hidden states come first where they are called otherwise), and where they are in
    the tuple that it returns, unless it returns hidden states alone."""

    hidden_name: str = "hidden_states"
    encoder_name: str = "encoder_hidden_states"
    hidden: int = 1
    encoder: int = 0


class Memory:
    """Of one pass of each step of one request."""

    def __init__(self, run: SkipRun) -> None:
        self.run = run
        self.signal: Tensor | None = None
        self.residual: Tensor | None = None
        self.skips = False
        self.given: Tensor | None = None


class StepSkipper:
    """Hooked into `model` once; `begin` before each request. One request runs at a time.

    The passes that a request makes in one step (two, for guidance in turn) are told apart by their order; `stepped`
    says that a step is over. `made` and `skipped` count passes. `ratios` are those of the request's residuals, where
    the policy only measures.
    """

    def __init__(
        self,
        model: nn.Module,
        policy: SkipPolicy,
        shape_of: Callable[[nn.Module], BlockShape] = lambda _: BlockShape(),
    ) -> None:
        self.made = self.skipped = 0
        self.ratios: list[float] = []
        self._policy = policy
        self._steps = 1
        self._memories: list[Memory] = []
        self._pass = 0
        blocks = block_stack(model)
        for place, block in enumerate(blocks):
            self._hook(block, shape_of(block), is_first=place == 0, is_last=place == len(blocks) - 1)

    def begin(self, steps: int) -> None:
        """A request of so many steps; whatever was remembered of another one goes."""
        self._steps, self._memories, self._pass, self.ratios = steps, [], 0, []

    def stepped(self) -> None:
        self._pass = 0

    def _hook(self, block: nn.Module, shape: BlockShape, *, is_first: bool, is_last: bool) -> None:
        inner = block.forward
        names = list(inspect.signature(inner).parameters)
        alone = False

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal alone
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            hidden = given[shape.hidden_name if shape.hidden_name in given else next(iter(given))]
            memory = self._enter(given, hidden) if is_first else self._memories[self._pass]
            if memory.skips:
                if is_first:
                    assert memory.residual is not None
                    hidden = hidden + memory.residual
                result = hidden if alone else _pair(shape, hidden, given.get(shape.encoder_name))
            else:
                result = inner(*args, **kwargs)
                alone = isinstance(result, Tensor)
                if is_last:
                    self._keep(memory, result if alone else result[shape.hidden])
            if is_last:
                self._pass += 1
            return result

        block.forward = forward

    def _enter(self, given: dict[str, Any], hidden: Tensor) -> Memory:
        if self._pass == len(self._memories):
            self._memories.append(Memory(self._policy.run(self._steps)))
        memory = self._memories[self._pass]
        memory.skips = memory.run.skips(self._change(memory, given)) and _fits(memory.residual, hidden)
        memory.given = hidden
        self.skipped += memory.skips
        self.made += not memory.skips
        return memory

    def _change(self, memory: Memory, given: dict[str, Any]) -> float | None:
        """Of the time embedding since the last pass, relative; of the first input where blocks take none."""
        if not self._policy.needs_change:
            return None
        tensors = [given[name] for name in SIGNALS if isinstance(given.get(name), Tensor)]
        signal = (tensors or [next(value for value in given.values() if isinstance(value, Tensor))])[0].float()
        last, memory.signal = memory.signal, signal
        if last is None or last.shape != signal.shape:
            return None
        return float((signal - last).abs().mean() / last.abs().mean().clamp(min=1e-12))

    def _keep(self, memory: Memory, hidden: Tensor) -> None:
        given, memory.given = memory.given, None
        assert given is not None
        before = memory.residual
        memory.residual = hidden - given if hidden.shape == given.shape else None
        if isinstance(self._policy, Measuring) and memory.residual is not None and self._pass == 0:
            self.ratios.append(magnitude_ratio(memory.residual, before))


def block_stack(model: nn.Module) -> Sequence[nn.Module]:
    """The blocks that hidden states go through. Raises INVALID_VALUE for a model that has no such lists."""
    lists = [
        child for name, child in model.named_children() if name in BLOCK_LISTS and isinstance(child, nn.ModuleList)
    ]
    blocks = [block for each in lists for block in each]
    if not blocks:
        raise invalid_value("step_skipping", type(model).__name__, "used with a model that is a stack of blocks")
    return blocks


def magnitude_ratio(residual: Tensor, before: Tensor | None) -> float:
    """How long the residual's vectors are, beside those of the step before; 1 at first. What MagCache is set up by."""
    if before is None:
        return 1.0
    return float((torch.linalg.norm(residual.float(), dim=-1) / torch.linalg.norm(before.float(), dim=-1)).mean())


def _fits(residual: Tensor | None, hidden: Tensor) -> bool:
    return residual is not None and residual.shape == hidden.shape


def _pair(shape: BlockShape, hidden: Tensor, encoder: Any) -> tuple[Any, ...]:
    placed = {shape.hidden: hidden, shape.encoder: encoder}
    return tuple(placed.get(place) for place in range(max(placed) + 1))
