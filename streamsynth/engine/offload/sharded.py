"""Slabs of which every rank keeps its part on the host: a block is rebuilt in the slot from all of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from streamsynth.engine.offload.host import HostMemory
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.slab import ALIGNMENT, SlabLayout, aligned, slab_memory
from streamsynth.engine.offload.transfer import Arrival, Fence, Transfer


class ShardedSlabs:
    """Of N ranks each keeps 1/N of every block. It is bytes that are cut, whatever the tensors: one collective a block.
    Every rank loads the same blocks in the same order."""

    def __init__(self, transfer: Transfer, ranks: Ranks) -> None:
        self._transfer = transfer
        self._ranks = ranks
        self._parts: list[tuple[SlabLayout, HostMemory]] = []
        self.host_bytes = 0

    def slot_bytes(self, layout: SlabLayout) -> int:
        return aligned(layout.nbytes, ALIGNMENT * self._ranks.size)

    def add(self, layout: SlabLayout, tensors: Sequence[Tensor]) -> None:
        whole = slab_memory(self.slot_bytes(layout), tensors[0].device if tensors else self._transfer.device)
        whole.zero_()
        layout.pack(tensors, whole)
        own = self._own(whole)
        memory = HostMemory(own.nbytes, pinned=self._transfer.device.type == "cuda")
        memory.slab.copy_(own)
        self._parts.append((layout, memory))
        self.host_bytes += own.nbytes

    def load(self, block: int, target: Tensor, after: Fence) -> Arrival:
        layout, memory = self._parts[block]
        whole = target[: self.slot_bytes(layout)]
        own = self._own(whole)
        return self._transfer.copy(memory.slab, own, after, lambda: self._ranks.gather(whole, own))

    def tensors(self, block: int) -> list[Tensor]:
        """Every rank asks for the same block at the same time."""
        layout, _ = self._parts[block]
        target = slab_memory(self.slot_bytes(layout), self._transfer.device)
        self.load(block, target, self._transfer.fence()).wait()
        return layout.views(target.cpu())

    def close(self) -> None:
        self._parts.clear()

    def _own(self, whole: Tensor) -> Tensor:
        part = whole.nbytes // self._ranks.size
        return whole[self._ranks.rank * part : (self._ranks.rank + 1) * part]
