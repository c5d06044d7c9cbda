"""Which is faster here: every rank copies its part of a slab and all gather it, or every rank copies the whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from streamsynth.engine.offload.host import HostMemory
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.slab import ALIGNMENT, aligned, slab_memory
from streamsynth.engine.offload.transfer import Arrival, Transfer

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Probe:
    """Milliseconds for one slab, of the slowest rank, in the best of a few rounds in which all ranks copy at once."""

    sharded_ms: float
    local_ms: float

    @property
    def sharded_is_faster(self) -> bool:
        return self.sharded_ms < self.local_ms


def probe(transfer: Transfer, ranks: Ranks, slab_bytes: int) -> Probe:
    """The same on every rank. Takes the memory of two slabs meanwhile."""
    nbytes = aligned(max(slab_bytes, 1), ALIGNMENT * ranks.size)
    host = ranks.agreed(lambda: HostMemory(nbytes, pinned=transfer.device.type == "cuda"))
    host.slab.zero_()
    whole = slab_memory(nbytes, transfer.device)
    part = nbytes // ranks.size
    own = slice(ranks.rank * part, (ranks.rank + 1) * part)

    def sharded() -> Arrival:
        return transfer.copy(host.slab[own], whole[own], transfer.fence(), lambda: ranks.gather(whole, whole[own]))

    def local() -> Arrival:
        return transfer.copy(host.slab, whole, transfer.fence())

    found = Probe(_slowest(sharded, transfer, ranks), _slowest(local, transfer, ranks))
    transfer.reset()
    return found


def _slowest(copy: Callable[[], Arrival], transfer: Transfer, ranks: Ranks) -> float:
    took: list[float] = []
    for _ in range(1 + _ROUNDS):  # the first one sets up what collectives and copies need
        ranks.words("ready")
        began = time.perf_counter()
        copy().wait()
        if transfer.device.type == "cuda":
            torch.cuda.synchronize(transfer.device)
        took.append(max(float(word) for word in ranks.words(f"{1000 * (time.perf_counter() - began):.6f}")))
    return min(took[1:])
