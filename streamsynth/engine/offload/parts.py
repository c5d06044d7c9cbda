"""What a model's blocks consist of: the parameters that may come and go, and where the modules hold them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from streamsynth.engine.absent import AbsentWeight
from streamsynth.engine.offload.plan import OffloadPlan
from streamsynth.errors import invalid_value

# A module's own table of parameters. What is put there is not looked at: an `AbsentWeight` passes for one.
Owner: TypeAlias = dict[str, Tensor | None]


@dataclass(frozen=True, slots=True)
class BlockParts:
    """Each of `tensors` once; `places` are (path, owner, name, index among the tensors)."""

    tensors: list[Tensor]
    places: list[tuple[str, Owner, str, int]]


def block_parts(model: nn.Module, plan: OffloadPlan) -> list[BlockParts]:
    """Of each block, the parameters that nothing else holds too. Raises INVALID_VALUE for one that cannot go."""
    holders = _holders(model, plan)
    parts: list[BlockParts] = []
    for path, block in zip(plan.blocks, plan.modules(model), strict=True):
        found = BlockParts([], [])
        index: dict[int, int] = {}
        for below, module in block.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is None or holders[id(parameter)] != {path}:
                    continue
                where = ".".join(part for part in (path, below, name) if part)
                if id(parameter) not in index:
                    _check(where, parameter)
                    index[id(parameter)] = len(found.tensors)
                    found.tensors.append(parameter.detach())
                owner: Owner = module._parameters
                found.places.append((where, owner, name, index[id(parameter)]))
        parts.append(found)
    return parts


def move_present(model: nn.Module, device: torch.device) -> None:
    """Move what is not absent, sharing kept. A parameter that was made under inference mode is made anew: with other
    data it would be neither of that mode nor ordinary, and torch computes with it in neither. So is a buffer."""
    moved: dict[int, Tensor] = {}
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or isinstance(parameter, AbsentWeight):
                continue
            if parameter.is_inference():
                if id(parameter) not in made:
                    made[id(parameter)] = _made_anew(parameter, device)
                module._parameters[name] = made[id(parameter)]
            else:
                parameter.data = parameter.data.to(device)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                if id(buffer) not in moved:
                    moved[id(buffer)] = buffer.to(device, copy=buffer.is_inference())
                module._buffers[name] = moved[id(buffer)]


def _made_anew(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    return nn.Parameter(parameter.to(device, copy=True), requires_grad=parameter.requires_grad)


def _holders(model: nn.Module, plan: OffloadPlan) -> dict[int, set[str | None]]:
    """By parameter, the blocks that have it; None: what is no block."""
    block_of = {
        id(below): path
        for path, block in zip(plan.blocks, plan.modules(model), strict=True)
        for below in block.modules()
    }
    holders: dict[int, set[str | None]] = defaultdict(set)
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders[id(parameter)].add(block_of.get(id(module)))
    return holders


def _check(path: str, parameter: Tensor) -> None:
    if type(parameter) not in (nn.Parameter, Tensor):
        raise invalid_value(path, type(parameter).__name__, "a plain tensor: a wrapper cannot be copied as bytes")
    if parameter.device.type != "cpu":
        raise invalid_value(path, str(parameter.device), "on the CPU before it is offloaded")
