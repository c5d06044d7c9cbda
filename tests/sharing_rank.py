"""One rank of several that share a model: `python sharing_rank.py RANK SIZE STORE FATE DEVICE`.

It writes what became of its waves. FATE: `lives`; `killed`, in which the last rank kills itself inside a block;
`stopped`, in which it stops there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from offload_models import given, network
from torch import Tensor

from streamsynth.engine.offload.host import HostMemory
from streamsynth.engine.offload.offloaded import Offloaded
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.shared import Shared, offload_shared_blocks
from streamsynth.engine.offload.turns import Turns
from streamsynth.engine.quant.convert import quantise_linears
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.errors import ErrorCode, StreamSynthError

PASSES = 3
SHARDED = OffloadOptions(sharing="sharded")


def request(model: torch.nn.Module, seed: int, passes: int = PASSES) -> Tensor:
    """The last of several passes, each of which goes on from the one before."""
    x = given(seed=seed).to(model.first.weight.device)  # type: ignore[union-attr]  # a Network
    for _ in range(passes):
        x = model(x)
    return x


def listed(result: Tensor | None) -> list[float] | None:
    return None if result is None else result.flatten().tolist()


class Rank:
    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self.ranks = ranks
        self.device = device
        self.model = network()
        self.shared: Shared = offload_shared_blocks(self.model, ranks, SHARDED, device)

    def wave(self, work: Callable[[], Tensor] | None, passes: int | None = PASSES) -> Any:
        assert self.shared.waves is not None
        try:
            outcome = self.shared.waves.run(work, passes)
        except StreamSynthError as error:
            return error.code.value
        return {
            "result": listed(outcome.result),
            "error": None if outcome.error is None else str(outcome.error),
            "failed": outcome.failed,
        }

    def own(self) -> Tensor:
        return request(self.model, seed=self.ranks.rank)


def waves(rank: Rank) -> dict[str, Any]:
    """One after the other on the same model: each has to leave it fit for the next."""
    ranks, model = rank.ranks, rank.model
    last = ranks.rank == ranks.size - 1
    found: dict[str, Any] = {"host_bytes": rank.shared.offloaded.host_bytes}
    for count in range(5):
        found[f"all {count}"] = rank.wave(rank.own)
    found["one"] = rank.wave(rank.own if ranks.rank == 0 else None, PASSES if ranks.rank == 0 else None)
    found["none"] = rank.wave(None)

    def fails(block: int) -> Tensor:
        request(model, seed=1, passes=1)
        model.blocks[block].fails = True
        return rank.own()

    for block in range(5):
        found[f"block {block} fails"] = rank.wave((lambda at=block: fails(at)) if last else rank.own)

    def skips() -> Tensor:
        model.runs = [0, 3]
        try:
            return rank.own()
        finally:
            model.runs = [0, 1, 2, 3, 4]

    found["last skips"] = rank.wave(skips if last else rank.own)
    found["last is short"] = rank.wave((lambda: request(model, ranks.rank, 1)) if last else rank.own)
    found["last is long"] = rank.wave((lambda: request(model, ranks.rank, 4)) if last else rank.own)
    found["steps differ"] = rank.wave(rank.own, PASSES + 1 if last else PASSES)
    found["steps missing"] = rank.wave(rank.own, None if last else PASSES)
    found["steps zero"] = rank.wave(rank.own, 0)
    found["outside"] = outside(model)
    found["after all that"] = rank.wave(rank.own)
    rank.shared.offloaded.close()
    model.to(rank.device)
    found["closed"] = listed(rank.own())
    return found


def outside(model: torch.nn.Module) -> str:
    try:
        request(model, 0, 1)
    except StreamSynthError as error:
        return str(error)
    return "ran"


def openings(ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Ways to begin, and to fail to begin, on all ranks alike."""
    found: dict[str, Any] = {}
    for sharing in ("auto", "local"):
        model = network()
        options = OffloadOptions(sharing=sharing)  # type: ignore[arg-type]
        shared = offload_shared_blocks(model, ranks, options, device)
        work = request if shared.waves is None else None
        found[sharing] = shared.waves is not None
        found[f"{sharing} probed"] = None if shared.probed is None else shared.probed.sharded_is_faster
        if work is not None and ranks.rank == 0:
            found[f"{sharing} alone"] = listed(request(model, 0))
    model = network(blocks=5 + ranks.rank)
    found["models differ"] = refused(lambda: offload_shared_blocks(model, ranks, SHARDED, device))
    with patch.object(HostMemory, "__init__", no_memory) if ranks.rank == ranks.size - 1 else nullcontext():
        found["no memory"] = refused(lambda: offload_shared_blocks(network(), ranks, SHARDED, device))
    model = network()
    quantise_linears(model, Recipe(ignored=("first", "last")))
    shared = offload_shared_blocks(model, ranks, SHARDED, device)
    assert shared.waves is not None
    outcome = shared.waves.run(lambda: request(model, ranks.rank), PASSES)
    found["float8"] = listed(outcome.result)
    return found


def turns(ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Two models, which each rank passes as often as it likes. The last fails in its second step."""
    models = [network(), network(blocks=3, seed=1)]
    shared = [offload_shared_blocks(model, ranks, SHARDED, device) for model in models]
    found: dict[str, Any] = {}
    turns = Turns(ranks, [(each.offloaded.module, each.waves) for each in shared if each.waves is not None])
    last = ranks.rank == ranks.size - 1
    for step in range(2):
        models[0].blocks[2].fails = last and step == 1
        try:
            found[f"turns {step}"] = listed(of_both(models, ranks.rank))
        except ValueError as error:
            found[f"turns {step}"] = str(error)
        turns.rest()
    found["turns taken"] = (turns.models, turns.passes, turns.idle)
    return found


def of_both(models: list[torch.nn.Module], rank: int) -> Tensor:
    """Rank 0 begins with the second model, the others with the first; each rank passes that once more than the one
    before."""
    first = request(models[1], rank, 1) if rank == 0 else request(models[0], rank, rank)
    return models[1 - (rank == 0)](first)


def no_memory(memory: HostMemory, nbytes: int, *, pinned: bool) -> None:
    raise StreamSynthError(ErrorCode.START_FAILED, f"cannot pin {nbytes} bytes")


def refused(make: Callable[[], object]) -> str:
    try:
        make()
    except StreamSynthError as error:
        return f"{error.code.value}: {error}"
    return "made"


def die(offloaded: Offloaded, how: signal.Signals) -> Callable[[], Tensor]:
    model = offloaded.module

    def work() -> Tensor:
        request(model, 0, 1)
        model.blocks[2].up.register_forward_pre_hook(lambda *_: os.kill(os.getpid(), how))  # type: ignore[union-attr,index]
        return request(model, 0)

    return work


def joined(rank: int, size: int, store: str, device: torch.device) -> Ranks:
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        rank=rank,
        world_size=size,
        store=dist.FileStore(store, size),
        timeout=timedelta(seconds=60 if device.type == "cuda" else 5),
    )
    assert dist.group.WORLD is not None
    return Ranks(dist.group.WORLD, dist.new_group(backend="gloo") if device.type == "cuda" else None)


def main(rank: int, size: int, store: str, fate: str, on: str) -> None:
    device = torch.device(on, rank) if on == "cuda" else torch.device(on)
    ranks = joined(rank, size, store, device)
    with torch.inference_mode():
        one = Rank(ranks, device)
        if fate == "lives":
            found = waves(one) | openings(ranks, device) | turns(ranks, device)
        else:
            how = signal.SIGKILL if fate == "killed" else signal.SIGSTOP
            work = die(one.shared.offloaded, how) if rank == size - 1 else one.own
            found = {"first": one.wave(one.own), "fate": one.wave(work), "next": one.wave(one.own)}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    # The group is not taken down in step: a rank that is gone would be waited for.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
