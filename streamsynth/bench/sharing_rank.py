"""One rank of `bench offload --part sharing`: `python -m streamsynth.bench.sharing_rank RANK`, its load on stdin.

Rank 0 writes its rows as JSON. Every way passes the same model with a request of every rank at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, cast

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from streamsynth.bench.offload_sides import DitSizes, inputs, random_dit, timed
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.plan import find_plan
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.shared import offload_shared_blocks

SHARDED, LOCAL = "streamsynth, sharded", "streamsynth, local"
FSDP2, FSDP2_OFFLOADED = "FSDP2", "FSDP2, offloaded"
WAYS = (SHARDED, LOCAL, FSDP2, FSDP2_OFFLOADED)


class SharingLoad(msgspec.Struct, frozen=True, kw_only=True):
    """`ranks` processes, each on a device of its own (or all on the CPU)."""

    ranks: int
    sizes: DitSizes = DitSizes()
    device: str = "cuda"
    dtype: str = "bfloat16"
    threads: int = 1
    tokens: tuple[int, ...] = (256, 32760)
    passes: int = 3
    rounds: int = 3
    store: str = ""


def main(rank: int, load: SharingLoad) -> None:
    torch.set_num_threads(load.threads)
    device = torch.device(load.device, rank) if load.device == "cuda" else torch.device(load.device)
    ranks = _joined(rank, load, device)
    rows: list[dict[str, Any]] = []
    outputs: dict[int, Tensor] = {}
    with torch.no_grad():
        for way in WAYS:
            rows += _rows(way, ranks, load, device, outputs)
    if rank == 0:
        sys.stdout.write(json.dumps(rows) + "\n")
    dist.destroy_process_group()


def _joined(rank: int, load: SharingLoad, device: torch.device) -> Ranks:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = FileStore(load.store, load.ranks)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=load.ranks, store=store, timeout=timedelta(seconds=120))
    data = cast("dist.ProcessGroup", dist.group.WORLD)
    return Ranks(data, dist.new_group(backend="gloo") if device.type == "cuda" else None)


def _rows(
    way: str, ranks: Ranks, load: SharingLoad, device: torch.device, outputs: dict[int, Tensor]
) -> Iterator[dict[str, Any]]:
    """`outputs`: the first way's of each clip, which the others are compared with."""
    model = random_dit(load.sizes, getattr(torch, load.dtype))
    host_bytes, run_wave, close = _opened(way, model, ranks, device)
    for tokens in load.tokens:
        run = inputs(tokens, getattr(torch, load.dtype), device)
        ran = timed(partial(run_wave, run), device, passes=load.passes, rounds=load.rounds)
        # A wave takes as long as its slowest rank.
        took = max(float(word) for word in ranks.words(f"{sorted(ran.pass_s)[len(ran.pass_s) // 2]:.9f}"))
        yield {
            "way": way,
            "tokens": tokens,
            "pass s": took,
            "passes/s of all": ranks.size / took,
            "host GB a rank": host_bytes / 1e9,
            "peak GB": ran.peak_bytes / 1e9,
            "same bits": torch.equal(ran.output, outputs.setdefault(tokens, ran.output)),
        }
    close()


RunWave = Callable[[Callable[[nn.Module], Tensor]], Tensor]


def _opened(way: str, model: nn.Module, ranks: Ranks, device: torch.device) -> tuple[int, RunWave, Callable[[], None]]:
    """The bytes that this rank keeps on the host, one pass of all ranks, and how to let go."""
    if way in (FSDP2, FSDP2_OFFLOADED):
        kept = _shard_fully(model, device, offloaded=way == FSDP2_OFFLOADED)
        return kept, lambda run: run(model), lambda: None
    options = OffloadOptions(sharing="sharded" if way == SHARDED else "local")
    shared = offload_shared_blocks(model, ranks, options, device, plan=find_plan(model))
    waves = shared.waves
    host_bytes = shared.offloaded.host_bytes
    if waves is None:
        return host_bytes, lambda run: run(model), shared.offloaded.close

    def wave(run: Callable[[nn.Module], Tensor]) -> Tensor:
        outcome = waves.run(lambda: run(model), 1)
        if outcome.result is None:
            raise outcome.error or RuntimeError("no result")
        return outcome.result

    return host_bytes, wave, shared.offloaded.close


def _shard_fully(model: nn.Module, device: torch.device, *, offloaded: bool) -> int:
    """The bytes that stay on this rank's host: its shards of blocks, where they are offloaded."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offloaded else OffloadPolicy()
    blocks = find_plan(model).modules(model)
    for block in blocks:
        fully_shard(block, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh)
    shards = [cast("DTensor", parameter).to_local() for block in blocks for parameter in block.parameters()]
    return sum(shard.nbytes for shard in shards) if offloaded else 0


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=SharingLoad))
