"""Forward passes over the next chunk of videos that go together: the plain ones, which say what is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from streamsynth.engine.rollout.attention import ChunkAttention, KeyBuffers, Span
from streamsynth.engine.rollout.frame_memory import FrameMemory
from streamsynth.engine.rollout.model import VideoModel
from streamsynth.engine.rollout.rollout import Rollout
from streamsynth.engine.rollout.window import Place

CLEAN = 0.0
"""The time step of a chunk without noise."""


class Forwards(Protocol):
    """`begin`, any number of `flow`s, and perhaps `commit`; then another `begin`."""

    def begin(self, rollouts: Sequence[Rollout], kept: int, places: Sequence[Sequence[Place]]) -> None:
        """What follows sees each rollout's first `kept` frames as they are in the pages now, and comes behind them.
        A commit will write each chunk's keys at its `places`. All rollouts have pages and one picture size."""

    def flow(self, latents: Tensor, timestep: float) -> Tensor:
        """Noise less clean latents; the tensor is good until the next pass."""

    def commit(self, latents: Tensor) -> None:
        """Write the keys and values of clean latents to the pages."""


class PlainForwards:
    """One operation after the other, at any shape."""

    def __init__(self, model: VideoModel, memory: FrameMemory) -> None:
        self._model = model
        self._memory = memory
        self._buffers = KeyBuffers(layers=model.layers, heads=model.heads, head_dim=model.head_dim, like=model.like)

    def begin(self, rollouts: Sequence[Rollout], kept: int, places: Sequence[Sequence[Place]]) -> None:
        model, request = self._model, rollouts[0].request
        self._latent = model.latent_shape(request.width, request.height)
        frame_tokens, chunk = model.frame_tokens(request.width, request.height), model.window.chunk
        buffers = self._buffers.view(len(rollouts), (kept + chunk) * frame_tokens)
        self._attention = ChunkAttention(self._memory, buffers, frame_tokens)
        if kept:
            table = self._table([rollout.pages_of_first(kept) for rollout in rollouts])
            self._attention.load(Span(table, model.rotary(self._positions(0, kept), *self._latent[1:])))
        self._commit_to = self._table([r.pages_of(p) for r, p in zip(rollouts, places, strict=True)])
        self._conditioning = model.stack([rollout.conditioning() for rollout in rollouts])
        self._rotary = model.rotary(self._positions(kept, chunk), *self._latent[1:])

    def flow(self, latents: Tensor, timestep: float) -> Tensor:
        timesteps = torch.full((len(latents), 1), timestep, device=latents.device)
        return self._model.flow(latents, timesteps, self._conditioning, self._rotary, self._attention)

    def commit(self, latents: Tensor) -> None:
        self._attention.commit_to = self._commit_to
        self.flow(latents, CLEAN)

    def _positions(self, start: int, count: int) -> Tensor:
        return torch.arange(start, start + count, device=self._model.like.device)[None]

    def _table(self, pages: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(pages, dtype=torch.int64, device=self._model.like.device)
