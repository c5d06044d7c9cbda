"""One model, offloaded in turn by us, by diffusers and by accelerate; and what the link gives a plain copy."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from streamsynth.engine.mapped import parameters_on_meta
from streamsynth.engine.offload.host import HostMemory
from streamsynth.engine.offload.offloaded import offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.slab import slab_memory
from streamsynth.engine.offload.statistics import OffloadStatistics

DIFFUSERS, ACCELERATE = "diffusers", "accelerate"
# Places on one axis that the model knows.
_AXIS = 1024
_TEXT_TOKENS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class DitSizes:
    """Of diffusers' Wan transformer; the defaults are Wan 2.1 14B's."""

    layers: int = 40
    heads: int = 40
    head_dim: int = 128
    ffn: int = 13824


def random_dit(sizes: DitSizes, dtype: torch.dtype) -> nn.Module:
    """On the CPU; its weights are one small random pattern over and over, which is quick to make at any size."""
    from diffusers import WanTransformer3DModel

    with parameters_on_meta():
        model: Any = WanTransformer3DModel(  # type: ignore[no-untyped-call]  # diffusers annotates no constructor
            num_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            attention_head_dim=sizes.head_dim,
            ffn_dim=sizes.ffn,
        )
    pattern = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)).mul_(0.02).to(dtype)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                filled = pattern.repeat(-(-parameter.numel() // len(pattern)))[: parameter.numel()]
                module._parameters[name] = nn.Parameter(filled.reshape(parameter.shape), requires_grad=False)
    built: nn.Module = model.eval()
    return built


def inputs(tokens: int, dtype: torch.dtype, device: torch.device) -> Callable[[nn.Module], Tensor]:
    """One pass over a clip of so many tokens, a multiple of 4."""
    generator = torch.Generator().manual_seed(1)
    columns = next(count for count in range(_AXIS, 0, -1) if tokens // 4 % count == 0)
    latents = torch.randn(1, 16, tokens // 4 // columns, 8, 2 * columns, generator=generator).to(device, dtype)
    text = torch.randn(1, _TEXT_TOKENS, 4096, generator=generator).to(device, dtype)
    time_step = torch.tensor([500.0], device=device)
    return lambda model: model(latents, time_step, text).sample


@dataclass(frozen=True, slots=True)
class Ran:
    """Seconds of each round's passes, each pass's share; the most that the allocator gave out meanwhile, and what all
    processes had of the device at the end."""

    pass_s: list[float]
    peak_bytes: int
    used_bytes: int
    output: Tensor
    statistics: OffloadStatistics | None = None


@contextmanager
def ours(model: nn.Module, options: OffloadOptions, device: torch.device) -> Iterator[Callable[[], OffloadStatistics]]:
    offloaded = offload_blocks(model, options, device)
    try:

        def since() -> OffloadStatistics:
            found = offloaded.statistics()
            offloaded.reset_statistics()
            return found

        yield since
    finally:
        offloaded.close()
        model.to("cpu")


@contextmanager
def diffusers_groups(model: nn.Module, device: torch.device) -> Iterator[None]:
    from diffusers.hooks.group_offloading import apply_group_offloading
    from diffusers.hooks.hooks import HookRegistry

    apply_group_offloading(
        model,
        onload_device=device,
        offload_device=torch.device("cpu"),
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=device.type == "cuda",
    )
    try:
        yield
    finally:
        for module in model.modules():
            registry: Any = HookRegistry.check_if_exists_or_initialize(module)
            for name in list(registry.hooks):
                registry.remove_hook(name, recurse=False)
        model.to("cpu")


@contextmanager
def accelerate_hooks(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model is of no use afterwards."""
    from accelerate import cpu_offload

    cpu_offload(model, device)
    yield


def timed(
    run: Callable[[], Tensor],
    device: torch.device,
    *,
    passes: int,
    rounds: int,
    since: Callable[[], OffloadStatistics] | None = None,
) -> Ran:
    """After one pass that is not counted. The statistics are those of all counted passes."""
    output = run()
    synchronize(device)
    if since is not None:
        since()
    reset_peak(device)
    took: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(passes):
            run()
        synchronize(device)
        took.append((time.perf_counter() - began) / passes)
    return Ran(took, peak_bytes(device), _used_bytes(device), output.float().cpu(), None if since is None else since())


def link_bytes_per_s(nbytes: int, device: torch.device, rounds: int = 5) -> float:
    """Of one plain copy from pinned memory to the device, the best of a few."""
    host, target = HostMemory(nbytes, pinned=device.type == "cuda"), slab_memory(nbytes, device)
    host.slab.zero_()
    took: list[float] = []
    for _ in range(rounds + 1):
        synchronize(device)
        began = time.perf_counter()
        target.copy_(host.slab, non_blocking=True)
        synchronize(device)
        took.append(time.perf_counter() - began)
    return nbytes / min(took[1:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """Allocated on a device since the last reset; of the process, on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _used_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
