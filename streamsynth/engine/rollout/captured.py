"""Forward passes that are captured once for each shape and repeated, as a GPU does; `PlainForwards` is their oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from streamsynth.engine.graphs import Work, repeating
from streamsynth.engine.rollout.attention import ChunkAttention, KeyBuffers, Span
from streamsynth.engine.rollout.forwards import CLEAN, Forwards
from streamsynth.engine.rollout.frame_memory import FrameMemory
from streamsynth.engine.rollout.model import Conditioning, VideoModel
from streamsynth.engine.rollout.rollout import Rollout
from streamsynth.engine.rollout.window import Place
from streamsynth.engine.static_inputs import Field, StaticInputs
from streamsynth.video import Size

_FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""On Hopper, over thousands of keys of 128 dimensions. What is captured keeps the kernel that it was captured with."""

_PROMPT = "the sea"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a captured pass is for: pictures of a size, so many rollouts, and so many frames before the chunk."""

    size: Size
    rows: int
    kept: int


@dataclass(frozen=True, slots=True)
class Common:
    """What the shapes share, since one of them runs at a time. `tables` has the fields `context` and `commit`, pages of
    the frames before the chunk and of the chunk's own; `conditionings` are by the number of rows."""

    model: VideoModel
    memory: FrameMemory
    buffers: KeyBuffers
    tables: StaticInputs
    conditionings: dict[int, Conditioning]
    capture: Callable[[Work], Work]


class CapturedForwards:
    """On CUDA every shape up to `max_rows` rollouts of these `sizes` is captured into graphs when this is built, and
    nothing is compiled or captured afterwards; elsewhere the same operations run again. Other shapes go to `plain`.

    `captures` counts them: bringing in the frames before, a pass, and a pass that commits, for each shape.
    """

    def __init__(
        self, model: VideoModel, memory: FrameMemory, sizes: Sequence[Size], *, max_rows: int, plain: Forwards
    ) -> None:
        self.captures = 0
        self._plain = plain
        self._running: Forwards = plain
        self._repeat = repeating(model.like.device)
        policy = model.window
        tokens = max(model.frame_tokens(size.width, size.height) for size in sizes)
        pages = max_rows * memory.pages_per_frame(tokens)
        tables = {
            "context": Field((pages * (policy.frames - policy.chunk),)),
            "commit": Field((pages * policy.chunk,)),
        }
        with torch.inference_mode(), sdpa_kernel(_FASTEST_FIRST, set_priority=True):
            blank = model.embed(_PROMPT)
            common = Common(
                model,
                memory,
                KeyBuffers(layers=model.layers, heads=model.heads, head_dim=model.head_dim, like=model.like),
                StaticInputs(tables, model.like.device),
                {rows: model.stack([model.condition(blank) for _ in range(rows)]) for rows in range(1, max_rows + 1)},
                self._capture,
            )
            # The largest first: the buffers stay where they are then, and the memory it takes serves the others too.
            largest_first = sorted(sizes, key=lambda size: -model.frame_tokens(size.width, size.height))
            self._shapes = {
                shape: ShapeForwards(common, shape)
                for rows in range(max_rows, 0, -1)
                for kept in range(policy.frames - policy.chunk, -1, -policy.chunk)
                for shape in (Shape(size, rows, kept) for size in largest_first)
            }

    def begin(self, rollouts: Sequence[Rollout], kept: int, places: Sequence[Sequence[Place]]) -> None:
        request = rollouts[0].request
        shape = Shape(Size(width=request.width, height=request.height), len(rollouts), kept)
        self._running = self._shapes.get(shape, self._plain)
        self._running.begin(rollouts, kept, places)

    def flow(self, latents: Tensor, timestep: float) -> Tensor:
        return self._running.flow(latents, timestep)

    def commit(self, latents: Tensor) -> None:
        self._running.commit(latents)

    def _capture(self, work: Work) -> Work:
        self.captures += 1
        return self._repeat(work)


class ShapeForwards:
    """`Forwards` at one shape. What it works on stays at its address; nothing in a pass waits for the host."""

    def __init__(self, common: Common, shape: Shape) -> None:
        self._common = common
        model, memory, like = common.model, common.memory, common.model.like
        channels, height, width = model.latent_shape(shape.size.width, shape.size.height)
        chunk, frame_tokens = model.window.chunk, model.frame_tokens(shape.size.width, shape.size.height)
        self._latents = like.new_zeros(shape.rows, channels, chunk, height, width)
        self._flow = torch.zeros_like(self._latents)
        self._timesteps = torch.zeros(shape.rows, 1, device=like.device)
        self._conditioning = common.conditionings[shape.rows]
        positions = torch.arange(shape.kept + chunk, device=like.device)[None]
        self._rotary = model.rotary(positions[:, shape.kept :], height, width)
        self._attention = ChunkAttention(
            memory, common.buffers.view(shape.rows, (shape.kept + chunk) * frame_tokens), frame_tokens
        )
        pages = memory.pages_per_frame(frame_tokens)
        self._commit_to = _table(common.tables.device["commit"], shape.rows, chunk * pages)
        common.tables.begin()
        common.tables.send()
        self._load: Work | None = None
        if shape.kept:
            table = _table(common.tables.device["context"], shape.rows, shape.kept * pages)
            context = Span(table, model.rotary(positions[:, : shape.kept], height, width))
            self._load = common.capture(lambda: self._attention.load(context))
        self._pass = common.capture(lambda: self._run(None))
        self._commit = common.capture(lambda: self._run(self._commit_to))

    def begin(self, rollouts: Sequence[Rollout], kept: int, places: Sequence[Sequence[Place]]) -> None:
        common = self._common
        host = common.tables.begin()
        _fill(host["context"], [page for rollout in rollouts for page in rollout.pages_of_first(kept)])
        _fill(host["commit"], [page for r, p in zip(rollouts, places, strict=True) for page in r.pages_of(p)])
        common.tables.send()
        given = common.model.stack([rollout.conditioning() for rollout in rollouts])
        torch._foreach_copy_(self._conditioning.tensors, given.tensors)
        if self._load is not None:
            self._load()

    def flow(self, latents: Tensor, timestep: float) -> Tensor:
        self._set(latents, timestep)
        self._pass()
        return self._flow

    def commit(self, latents: Tensor) -> None:
        self._set(latents, CLEAN)
        self._commit()

    def _set(self, latents: Tensor, timestep: float) -> None:
        self._latents.copy_(latents)
        self._timesteps.fill_(timestep)

    def _run(self, commit_to: Tensor | None) -> None:
        self._attention.commit_to = commit_to
        model = self._common.model
        flow = model.flow(self._latents, self._timesteps, self._conditioning, self._rotary, self._attention)
        self._flow.copy_(flow)


def _table(field: Tensor, rows: int, pages: int) -> Tensor:
    return field[: rows * pages].view(rows, pages)


def _fill(host: npt.NDArray[np.int64], pages: Sequence[int]) -> None:
    host[: len(pages)] = pages
