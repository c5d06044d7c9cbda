"""The ranks of a stage meet: torch.distributed's groups for what a layout needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.parallel.layout import Layout
from streamsynth.engine.parallel.seat import Seat

SILENCE = timedelta(minutes=30)
"""How long a rank waits for another: one may load for minutes. One that hangs is found by the server, whose heartbeats
come from rank 0's step loop."""


@dataclass(frozen=True, slots=True)
class Group:
    """`ranks` are all of the stage, `sharing` those with which this one shares host memory, `sequence` those with which
    it divides the sequence of a request; None where each has requests of its own."""

    layout: Layout
    ranks: Ranks
    sharing: Ranks
    sequence: Ranks | None

    @property
    def replica(self) -> int:
        return self.layout.replica(self.ranks.rank)


def join(seat: Seat, layout: Layout, device: torch.device) -> Group:
    """Called by all ranks at the same time, once in a process. Slabs and sequences go through NCCL where the devices
    are CUDA's, small words through gloo."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device.index or 0)
    dist.init_process_group(
        "nccl" if on_cuda else "gloo",
        rank=seat.rank,
        world_size=seat.size,
        store=FileStore(seat.store, seat.size),
        timeout=SILENCE,
    )
    assert dist.group.WORLD is not None
    control = dist.new_group(backend="gloo", timeout=SILENCE)
    ranks = Ranks(dist.group.WORLD, control)
    if layout.ulysses_degree == 1:
        return Group(layout, ranks, ranks, None)
    if layout.data_parallel == 1:
        return Group(layout, ranks, ranks, ranks)
    replicas = [list(layout.ranks_of(replica)) for replica in range(layout.data_parallel)]
    return Group(layout, ranks, _one_of(layout.sharing(), seat), _one_of(replicas, seat))


def _one_of(groups: Sequence[Sequence[int]], seat: Seat) -> Ranks:
    """That of this rank; every rank takes part in making every group."""
    mine: Ranks | None = None
    for members in groups:
        data = dist.new_group(list(members), timeout=SILENCE)
        words = dist.new_group(list(members), timeout=SILENCE, backend="gloo")
        if seat.rank in members:
            mine = Ranks(data, words)
    assert mine is not None
    return mine
