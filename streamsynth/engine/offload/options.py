"""How a model is offloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamsynth.errors import invalid_value

MAX_PREFETCH = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadOptions:
    """`resident_blocks` leading blocks stay on the device. `prefetch_blocks` come ahead of the one that runs: slots are
    one more than that, each as large as the largest block.

    `host`: `pinned` copies each block once into page-locked memory of this process, the fastest source; `in_place`
    leaves tensors where they are (views of a mapped file, which processes share), and stages them through two slabs.

    `sharing`, for several ranks: `sharded` keeps 1/N of each block on the host of each and gathers blocks on the
    devices, `local` all of them on each; `auto` measures which is faster, where the other fields leave the choice.
    """

    resident_blocks: int = 0
    prefetch_blocks: int = 1
    host: Literal["pinned", "in_place"] = "pinned"
    sharing: Literal["auto", "sharded", "local"] = "auto"

    def __post_init__(self) -> None:
        if self.resident_blocks < 0:
            raise invalid_value("resident_blocks", self.resident_blocks, "0 or more")
        if not 0 <= self.prefetch_blocks <= MAX_PREFETCH:
            raise invalid_value("prefetch_blocks", self.prefetch_blocks, f"0 to {MAX_PREFETCH}")
        if self.sharing not in ("auto", "sharded", "local"):
            raise invalid_value("sharing", self.sharing, "auto, sharded or local")
        if self.sharing == "sharded" and self.resident_blocks:
            raise invalid_value("resident_blocks", self.resident_blocks, "0 where blocks are sharded")
        if self.sharing == "sharded" and self.host != "pinned":
            raise invalid_value("host", self.host, "pinned where blocks are sharded")
        if self.host not in ("pinned", "in_place"):
            raise invalid_value("host", self.host, "pinned or in_place")
