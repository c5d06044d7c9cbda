"""One request on several ranks: each has a part of the denoiser's sequence, and of the heads in its attention.

The hooks and the exchange between ranks (Ulysses) are those of diffusers, by its models' own plans.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from streamsynth.engine.parallel.layout import Layout
from streamsynth.errors import invalid_value
from streamsynth.models.diffusers.placing import DENOISERS


def check_sequence(pipeline: Any, layout: Layout) -> None:
    """Raise INVALID_VALUE for a pipeline whose sequence cannot be divided."""
    if layout.ulysses_degree == 1:
        return
    for denoiser in denoisers(pipeline):
        if getattr(denoiser, "_cp_plan", None) is None:
            limit = f"1: diffusers has no plan to divide the sequence of {type(denoiser).__name__}"
            raise invalid_value("ulysses_degree", layout.ulysses_degree, limit)


def divide_sequence(pipeline: Any, layout: Layout, device: torch.device) -> None:
    """Called by all ranks at the same time, after blocks were offloaded: their hooks belong below these."""
    if layout.ulysses_degree == 1:
        return
    # Its classes are not typed as they are built.
    diffusers: Any = importlib.import_module("diffusers")
    hooks: Any = importlib.import_module("diffusers.hooks.context_parallel")
    mesh = init_device_mesh(
        device.type, (layout.data_parallel, 1, layout.ulysses_degree), mesh_dim_names=("data", "ring", "ulysses")
    )
    # "Anything": sequences and heads need not come out even.
    ulysses = diffusers.ContextParallelConfig(ulysses_degree=layout.ulysses_degree, ulysses_anything=True, mesh=mesh)
    config = diffusers.ParallelConfig(context_parallel_config=ulysses)
    # What diffusers' `enable_parallelism` does, which wants an accelerator even where none is needed.
    config.setup(dist.get_rank(), dist.get_world_size(), device, mesh=mesh)
    for denoiser in denoisers(pipeline):
        denoiser._parallel_config = config
        for module in denoiser.modules():
            processor: Any = getattr(module, "processor", None)
            if hasattr(processor, "_parallel_config"):
                processor._parallel_config = config
        hooks.apply_context_parallel(denoiser, ulysses, denoiser._cp_plan)


def denoisers(pipeline: Any) -> list[Any]:
    return [getattr(pipeline, name) for name in DENOISERS if getattr(pipeline, name, None) is not None]
