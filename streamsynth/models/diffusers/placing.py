"""Where a pipeline's parts lie, on the device or block by block on their way there; and in how many bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from streamsynth.engine.offload.offloaded import Offloaded, offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.plan import find_plan
from streamsynth.engine.quant.recipe import METHODS, Recipe
from streamsynth.errors import StreamSynthError, invalid_value

DENOISERS = ("transformer", "transformer_2", "unet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """`offload`: the blocks of denoisers and text encoders stay on the host, but `resident_blocks` of a denoiser.
    `quantisation`: of the denoisers' linear layers, or "none"; `ignored_layers` are patterns of those left alone."""

    offload: bool = False
    resident_blocks: int = 0
    quantisation: str = "none"
    ignored_layers: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.resident_blocks and not self.offload:
            raise invalid_value("resident_blocks", self.resident_blocks, "0 where nothing is offloaded")
        if self.quantisation not in ("none", *METHODS):
            raise invalid_value("quantisation", self.quantisation, "one of " + ", ".join(("none", *METHODS)))
        if self.ignored_layers and self.quantisation == "none":
            raise invalid_value("ignored_layers", list(self.ignored_layers), "empty where nothing is quantised")

    @property
    def recipe(self) -> Recipe | None:
        """None where nothing is quantised."""
        return None if self.quantisation == "none" else Recipe(ignored=tuple(self.ignored_layers))


def place(pipeline: Any, placement: Placement, device: torch.device) -> list[Offloaded]:
    """Offload what `placement` says, and move all else to the device. Returns what is offloaded."""
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
    offloaded = []
    for name, module in modules.items():
        if placement.offload and (name in DENOISERS or name.startswith("text_encoder")) and _has_blocks(module):
            resident = placement.resident_blocks if name in DENOISERS else 0
            offloaded.append(offload_blocks(module, OffloadOptions(resident_blocks=resident), device))
        else:
            module.to(device)
    return offloaded


def _has_blocks(module: nn.Module) -> bool:
    try:
        find_plan(module)
    except StreamSynthError:
        return False
    return True
