"""The step loop of a talker on a device: pages, the planner, and the runner that is fastest there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from streamsynth.engine.attention import PageMemory, QuantisedPageMemory
from streamsynth.engine.captured import CapturedRunner, StepSizes
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Runner, StepRunner
from streamsynth.errors import invalid_value
from streamsynth.models.csm.model import CsmTalker

PAGE_SIZE = 16
_PROMPT_TOKENS = (64, 512)
"""Captured sizes: a sentence alone, and several prompts or a long one together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopSizes:
    """`gang_rows`: the rows of each request. `max_rows` and `max_tokens` bound a step, `max_positions` a row.

    `float8` keeps keys and values in eight bits, with a scale a token and head. `overlap` lets a kernel start while the
    one before it runs, where the device can: only without it a kernel's time is its own.
    """

    gang_rows: int
    max_rows: int
    max_tokens: int
    max_positions: int
    kv_cache_memory_bytes: int
    float8: bool = False
    overlap: bool = True


@dataclass(frozen=True, slots=True)
class Loop:
    runner: StepRunner
    planner: Planner
    memory: PageMemory


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
    pages = sizes.kv_cache_memory_bytes // kind.page_bytes(**shape, dtype=like.dtype)
    if pages < 2:
        raise invalid_value("kv_cache_memory_bytes", sizes.kv_cache_memory_bytes, "room for two pages")
    memory = kind(**shape, pages=pages, like=like)
    planner = Planner(PagePool(pages), page_size=PAGE_SIZE, max_rows=sizes.max_rows, max_tokens=sizes.max_tokens)
    plain = Runner(talker, memory)
    return Loop(_captured(talker, memory, plain, sizes) if like.is_cuda else plain, planner, memory)


def _captured(talker: CsmTalker, memory: PageMemory, plain: Runner, sizes: LoopSizes) -> CapturedRunner:
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
        max_positions=sizes.max_positions,
    )
    return CapturedRunner(
        FusedCsm(talker, overlap=overlap), memory, steps, plain=plain, attention=PagedKernels(device, overlap=overlap)
    )
