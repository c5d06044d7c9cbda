"""Where a pipeline's parts lie, on the device or block by block on their way there; and in how many bits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from streamsynth.engine.offload.offloaded import Offloaded, offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.plan import find_plan
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.shared import Shared, offload_shared_blocks
from streamsynth.engine.quant.recipe import METHODS, Recipe
from streamsynth.errors import StreamSynthError, invalid_value

logger = logging.getLogger(__name__)

DENOISERS = ("transformer", "transformer_2", "unet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """`offload`: the blocks of denoisers and text encoders stay on the host, but `resident_blocks` of a denoiser; of
    several ranks, on which hosts, says `sharing`. `quantisation`: of the denoisers' linear layers, or "none";
    `ignored_layers` are patterns of those left alone."""

    offload: bool = False
    resident_blocks: int = 0
    sharing: Literal["auto", "sharded", "local"] = "auto"
    quantisation: str = "none"
    ignored_layers: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.resident_blocks and not self.offload:
            raise invalid_value("resident_blocks", self.resident_blocks, "0 where nothing is offloaded")
        if self.sharing != "auto" and not self.offload:
            raise invalid_value("sharing", self.sharing, "auto where nothing is offloaded")
        if self.quantisation not in ("none", *METHODS):
            raise invalid_value("quantisation", self.quantisation, "one of " + ", ".join(("none", *METHODS)))
        if self.ignored_layers and self.quantisation == "none":
            raise invalid_value("ignored_layers", list(self.ignored_layers), "empty where nothing is quantised")
        self.of_denoisers  # noqa: B018 - checked where it is built

    @property
    def recipe(self) -> Recipe | None:
        """None where nothing is quantised."""
        return None if self.quantisation == "none" else Recipe(ignored=tuple(self.ignored_layers))

    @property
    def of_denoisers(self) -> OffloadOptions:
        return OffloadOptions(resident_blocks=self.resident_blocks, sharing=self.sharing)

    @property
    def of_encoders(self) -> OffloadOptions:
        return OffloadOptions(sharing=self.sharing)


def place(pipeline: Any, placement: Placement, device: torch.device) -> list[Offloaded]:
    """Offload what `placement` says, and move all else to the device. Returns what is offloaded."""
    return [offload_blocks(module, options, device) for _, module, options in _to_offload(pipeline, placement, device)]


def place_shared(
    pipeline: Any, placement: Placement, device: torch.device, ranks: Ranks, agreed: Callable[[bool], bool]
) -> list[Shared]:
    """As `place`, on every rank at the same time; `agreed` says whether what holds here holds on all of the stage, of
    which `ranks` may be some."""
    placed = []
    for name, module, options in _to_offload(pipeline, placement, device):
        shared = offload_shared_blocks(module, ranks, options, device, agreed=agreed)
        placed.append(shared)
        way = "local" if shared.waves is None else "sharded"
        logger.info("%s: %s, %d bytes of this host; %s", name, way, shared.offloaded.host_bytes, shared.probed)
    return placed


def _to_offload(
    pipeline: Any, placement: Placement, device: torch.device
) -> Iterator[tuple[str, nn.Module, OffloadOptions]]:
    for name, module in pipeline.components.items():
        if not isinstance(module, nn.Module):
            continue
        denoises = name in DENOISERS
        if placement.offload and (denoises or name.startswith("text_encoder")) and _has_blocks(module):
            yield name, module, placement.of_denoisers if denoises else placement.of_encoders
        else:
            module.to(device)


def _has_blocks(module: nn.Module) -> bool:
    try:
        find_plan(module)
    except StreamSynthError:
        return False
    return True
