"""`bench offload`: passes of a model that is larger than what it may take of the device, beside other ways to do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Literal, TypeAlias

import torch
from torch import nn

from streamsynth.bench.offload_sides import (
    ACCELERATE,
    DIFFUSERS,
    DitSizes,
    Ran,
    accelerate_hooks,
    diffusers_groups,
    inputs,
    link_bytes_per_s,
    ours,
    random_dit,
    timed,
)
from streamsynth.bench.report import Report, Row
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.plan import find_plan, module_bytes
from streamsynth.engine.offload.statistics import OffloadStatistics
from streamsynth.errors import invalid_value

OURS = "streamsynth"
Since: TypeAlias = Callable[[], OffloadStatistics]
SIDES = (DIFFUSERS, ACCELERATE)


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadLoad:
    """Each of `tokens` is a clip to pass through the model, `passes` times in each of `rounds`. We run it with each of
    `resident` leading blocks; `theirs` are those of `SIDES` to run beside. `depths` are numbers of layers at which the
    memory on the device is looked at."""

    sizes: DitSizes = field(default_factory=DitSizes)
    device: str = "cuda"
    dtype: str = "bfloat16"
    threads: int = 1
    tokens: Sequence[int] = (256, 32760)
    resident: Sequence[int] = (0, 12)
    prefetch: int = 1
    host: Literal["pinned", "in_place"] = "pinned"
    theirs: Sequence[str] = SIDES
    depths: Sequence[int] = (10, 20, 40)
    passes: int = 3
    rounds: int = 3

    def __post_init__(self) -> None:
        for count in self.tokens:
            if count < 4 or count % 4:
                raise invalid_value("tokens", count, "a multiple of 4")


def bench_offload(load: OffloadLoad) -> list[Report]:
    """Blocking."""
    torch.set_num_threads(load.threads)
    device, dtype = torch.device(load.device), getattr(torch, load.dtype)
    model = random_dit(load.sizes, dtype)
    blocks = find_plan(model).modules(model)
    streamed, largest = sum(map(module_bytes, blocks)), max(map(module_bytes, blocks))
    link = link_bytes_per_s(largest, device)
    notes = [
        f"{sum(each.numel() for each in model.parameters()) / 1e9:.2f} billion parameters, {streamed / 1e9:.2f} GB in "
        f"{len(blocks)} blocks; a plain copy of one block to the device: {link / 1e9:.1f} GB/s"
    ]
    # Not in inference mode: the others put tensors in the place of parameters, which are none of inference then.
    with torch.no_grad():
        # What grows with the model's depth is looked at first: accelerate leaves the model of no use.
        memory = list(_memory_rows(model, load, device))
        rows = list(_rows(model, load, device, streamed=streamed, link=link))
    settings = {name: str(getattr(load, name)) for name in ("device", "dtype", "sizes", "prefetch", "host", "passes")}
    return [Report("offload", rows, notes=notes, settings=settings), Report("offload-memory", memory)]


def _rows(model: nn.Module, load: OffloadLoad, device: torch.device, *, streamed: int, link: float) -> Iterator[Row]:
    found: dict[tuple[str, int, int], Ran] = {}
    for resident in load.resident:
        for tokens, ran in _ours(model, load, device, resident=resident, clips=load.tokens).items():
            found[OURS, resident, tokens] = ran
    for name in load.theirs:
        offloading = diffusers_groups if name == DIFFUSERS else accelerate_hooks
        with offloading(model, device):
            for tokens, ran in _clips(model, load, device, load.tokens).items():
                found[name, 0, tokens] = ran
    layers = load.sizes.layers
    for (name, resident, tokens), ran in found.items():
        took = median(ran.pass_s)
        # What a pass has to bring: our resident blocks are there.
        brought = streamed * (layers - resident) / layers
        others = [median(found[other, 0, tokens].pass_s) for other in load.theirs]
        same = [torch.equal(ran.output, other.output) for (_, _, at), other in found.items() if at == tokens]
        statistics = ran.statistics
        yield {
            "side": name,
            "resident": resident,
            "tokens": tokens,
            "pass s": took,
            "GB/s": brought / took / 1e9,
            "of the link": brought / took / link,
            "over the better peer": min(others) / took if others and name == OURS else None,
            "stall share": None if statistics is None else statistics.stall_ms / 1000 / sum(ran.pass_s) / load.passes,
            "copy GB/s": None if statistics is None else statistics.gigabytes_per_s,
            "allocator's peak GB": ran.peak_bytes / 1e9,
            "device's GB": ran.used_bytes / 1e9,
            "same bits": f"{sum(same)} of {len(same)}",
        }


def _ours(
    model: nn.Module, load: OffloadLoad, device: torch.device, *, resident: int, clips: Sequence[int]
) -> dict[int, Ran]:
    options = OffloadOptions(resident_blocks=resident, prefetch_blocks=load.prefetch, host=load.host)
    with ours(model, options, device) as since:
        return _clips(model, load, device, clips, since)


def _clips(
    model: nn.Module, load: OffloadLoad, device: torch.device, clips: Sequence[int], since: Since | None = None
) -> dict[int, Ran]:
    """By their tokens."""
    found: dict[int, Ran] = {}
    for tokens in clips:
        run = partial(inputs(tokens, getattr(torch, load.dtype), device), model)
        found[tokens] = timed(run, device, passes=load.passes, rounds=load.rounds, since=since)
    return found


def _memory_rows(model: nn.Module, load: OffloadLoad, device: torch.device) -> Iterator[Row]:
    """The same model with fewer blocks: at any depth the device holds as much, but for what the model itself keeps."""
    whole = model.blocks
    try:
        for depth in load.depths:
            model.blocks = nn.ModuleList(list(whole)[:depth])  # type: ignore[arg-type]  # a module list
            (ran,) = _ours(model, load, device, resident=0, clips=[min(load.tokens)]).values()
            yield {"layers": depth, "blocks GB": module_bytes(model.blocks) / 1e9, "peak GB": ran.peak_bytes / 1e9}
    finally:
        model.blocks = whole
