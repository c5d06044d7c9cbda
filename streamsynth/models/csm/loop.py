"""The step loop of a talker on a device: pages, the planner, and the runner that is fastest there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from streamsynth.engine.attention import PageMemory, QuantisedPageMemory
from streamsynth.engine.captured import CapturedRunner, StepSizes
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.kv.sizing import fitted_length, pool_pages
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Runner, StepRunner
from streamsynth.models.csm.model import CsmTalker

PAGE_SIZE = 16
_PROMPT_TOKENS = (64, 512)
"""Captured sizes: a sentence alone, and several prompts or a long one together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopSizes:
    """`gang_rows`: the rows of each request. `max_rows` and `max_tokens` bound a step, `max_model_len` a row (-1: what
    the model and the pages hold).

    `float8` keeps keys and values in eight bits, with a scale a token and head. `overlap` lets a kernel start while the
    one before it runs, where the device can: only without it a kernel's time is its own.
    """

    gang_rows: int
    max_rows: int
    max_tokens: int
    max_model_len: int
    kv_cache_memory_bytes: int
    float8: bool = False
    overlap: bool = True


@dataclass(frozen=True, slots=True)
class Loop:
    """`max_positions` is what a row may have, its prompt included."""

    runner: StepRunner
    planner: Planner
    memory: PageMemory
    max_positions: int


def open_loop(talker: CsmTalker, sizes: LoopSizes) -> Loop:
    """On CUDA this compiles and captures every step that will ever run: it takes up to a minute."""
    kind = QuantisedPageMemory if sizes.float8 else PageMemory
    backbone, like = talker.config.backbone, talker.projector.weight
    shape = {
        "layers": backbone.layers,
        "page_size": PAGE_SIZE,
        "kv_heads": backbone.kv_heads,
        "head_dim": backbone.head_dim,
    }
    pages = pool_pages(sizes.kv_cache_memory_bytes, kind.page_bytes(**shape, dtype=like.dtype))
    positions = fitted_length(
        sizes.max_model_len,
        model_limit=backbone.max_position_embeddings,
        usable_pages=(pages - 1) // sizes.gang_rows,
        page_size=PAGE_SIZE,
    )
    memory = kind(**shape, pages=pages, like=like)
    planner = Planner(PagePool(pages), page_size=PAGE_SIZE, max_rows=sizes.max_rows, max_tokens=sizes.max_tokens)
    plain = Runner(talker, memory)
    runner = _captured(talker, memory, plain, sizes, positions) if like.is_cuda else plain
    return Loop(runner, planner, memory, positions)


def _captured(talker: CsmTalker, memory: PageMemory, plain: Runner, sizes: LoopSizes, positions: int) -> CapturedRunner:
    # Triton is there on CUDA alone.
    from streamsynth.engine.kernels.paged import PagedKernels
    from streamsynth.models.csm.fused import FusedCsm

    device = memory.keys.device
    overlap = sizes.overlap and torch.cuda.get_device_capability(device)[0] >= 9
    most = sizes.max_rows // sizes.gang_rows
    units = [1 << power for power in range((most - 1).bit_length())]
    steps = StepSizes(
        gang_rows=(sizes.gang_rows,),
        units=(*units, most),
        tokens=[*(size for size in _PROMPT_TOKENS if size < sizes.max_tokens), sizes.max_tokens],
        max_rows=sizes.max_rows,
        max_positions=positions,
    )
    return CapturedRunner(
        FusedCsm(talker, overlap=overlap), memory, steps, plain=plain, attention=PagedKernels(device, overlap=overlap)
    )
