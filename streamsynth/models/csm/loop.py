"""The step loop of a talker on a device: pages, the planner, and the runner that is fastest there."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch

from streamsynth.engine.attention import PageMemory
from streamsynth.engine.captured import CapturedRunner, StepSizes
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.kv.room import PageShape, make_room
from streamsynth.engine.kv.sizing import MeasuredDevice
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Runner, StepRunner
from streamsynth.models.csm.model import CsmTalker

PAGE_SIZE = 16
_PROMPT_TOKENS = (64, 512)
"""Captured sizes: a sentence alone, and several prompts or a long one together."""
_FEWEST_PAGES = 2


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
    float8: bool = False
    overlap: bool = True


@dataclass(frozen=True, slots=True)
class Loop:
    """`max_positions` is what a row may have, its prompt included."""

    runner: StepRunner
    planner: Planner
    memory: PageMemory
    max_positions: int


def page_shape(talker: CsmTalker, *, float8: bool = False) -> PageShape:
    backbone = talker.config.backbone
    return PageShape(
        layers=backbone.layers,
        page_size=PAGE_SIZE,
        kv_heads=backbone.kv_heads,
        head_dim=backbone.head_dim,
        float8=float8,
    )


def open_loop(talker: CsmTalker, sizes: LoopSizes, device: MeasuredDevice) -> Loop:
    """On CUDA this compiles and captures every step that will ever run, once more where the pages are measured: it
    takes up to a minute."""
    shape, like = page_shape(talker, float8=sizes.float8), talker.projector.weight
    limit = talker.config.backbone.max_position_embeddings

    def run_at_largest() -> int:
        # All that is ever computed is captured, and every capture runs: so building them is the largest run.
        _runner(talker, shape.open(_FEWEST_PAGES, like), sizes, limit)
        gc.collect()  # What was captured refers to itself, and its memory is wanted.
        return shape.nbytes(_FEWEST_PAGES, like)

    room = make_room(
        shape,
        like,
        device,
        run_at_largest,
        gang_rows=sizes.gang_rows,
        max_model_len=sizes.max_model_len,
        model_limit=limit,
    )
    planner = Planner(PagePool(room.pages), page_size=PAGE_SIZE, max_rows=sizes.max_rows, max_tokens=sizes.max_tokens)
    return Loop(_runner(talker, room.memory, sizes, room.positions), planner, room.memory, room.positions)


def _runner(talker: CsmTalker, memory: PageMemory, sizes: LoopSizes, positions: int) -> StepRunner:
    plain = Runner(talker, memory)
    return _captured(talker, memory, plain, sizes, positions) if memory.keys.is_cuda else plain


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
