"""Making the next chunk of several videos whose shapes agree, one forward pass at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import torch
from torch import Tensor

from streamsynth.engine.rollout.attention import ChunkAttention, Span
from streamsynth.engine.rollout.frame_memory import FrameMemory
from streamsynth.engine.rollout.model import VideoModel
from streamsynth.engine.rollout.rollout import Rollout
from streamsynth.engine.rollout.window import KeptFrame, PromptVersion
from streamsynth.interactions.messages import Kv

CLEAN = 0.0
"""The time step of a chunk without noise."""


class ChunkMaker:
    """Denoises, decodes and commits. All its rollouts have pages, a plan, and the same `shape`."""

    def __init__(self, model: VideoModel, memory: FrameMemory, rollouts: Sequence[Rollout]) -> None:
        self.rollouts = rollouts
        self._model = model
        self._memory = memory
        first = rollouts[0]
        self._width, self._height = first.request.width, first.request.height
        self._latent = model.latent_shape(self._width, self._height)
        self._frame_tokens = model.frame_tokens(self._width, self._height)

    def passes(self) -> Iterator[Sequence[Tensor] | None]:
        """Do one forward pass for each item. Once the pictures are made, they are an item: uint8 (pictures, height,
        width, 3) for each rollout; what follows is the commit, for the next chunk's sake."""
        yield from self._recache()
        attention = self._attention(self.rollouts, [rollout.window.kept for rollout in self.rollouts])
        latents = yield from self._denoise(attention)
        yield self._model.decode(latents, [rollout.decoder for rollout in self.rollouts])
        places = [rollout.window.places_to_write() for rollout in self.rollouts]
        attention.commit_to = self._table([r.pages_of(p) for r, p in zip(self.rollouts, places, strict=True)])
        self._pass(self.rollouts, latents, CLEAN, attention, self.rollouts[0].window.rotary_start)
        for rollout, written, clean in zip(self.rollouts, places, latents, strict=True):
            rollout.keep(written, clean)
        yield None

    def _denoise(self, attention: ChunkAttention) -> Generator[None, None, Tensor]:
        denoiser = self._model.denoiser
        latents = self._noise(0)
        start = self.rollouts[0].window.rotary_start
        for step, timestep in enumerate(denoiser.timesteps):
            flow = self._pass(self.rollouts, latents, timestep, attention, start)
            noise = self._noise(step + 1) if denoiser.needs_noise(step) else None
            latents = denoiser.advance(latents, flow, step, noise)
            yield None
        return latents

    def _recache(self) -> Iterator[None]:
        """Compute the sliding frames' keys again where the plan asks for it, oldest first: each chunk sees those before
        it as they are by then.
        """
        for rollout in self.rollouts:
            assert rollout.plan is not None
            if rollout.plan.kv is not Kv.RECACHE:
                continue
            version = PromptVersion(rollout.plan.prompt_version)
            kept = rollout.window.kept
            for chunk in rollout.window.chunks_to_recache():
                start = next(rank for rank, frame in enumerate(kept) if frame.index == chunk[0].index)
                attention = self._attention([rollout], [kept[:start]])
                attention.commit_to = self._table([rollout.pages_of([frame.place for frame in chunk])])
                clean = torch.stack([rollout.latents[frame.index] for frame in chunk], 1)[None]
                self._pass([rollout], clean, CLEAN, attention, start)
                rollout.window.recached(chunk, version)
                yield None

    def _pass(
        self, rollouts: Sequence[Rollout], latents: Tensor, timestep: float, attention: ChunkAttention, start: int
    ) -> Tensor:
        model, (_, height, width) = self._model, self._latent
        positions = torch.arange(start, start + latents.shape[2], device=latents.device)[None]
        return model.flow(
            latents,
            torch.full((len(rollouts), 1), timestep, device=latents.device),
            model.stack([rollout.conditioning() for rollout in rollouts]),
            model.rotary(positions, height, width),
            attention,
        )

    def _attention(self, rollouts: Sequence[Rollout], contexts: Sequence[Sequence[KeptFrame]]) -> ChunkAttention:
        count = len(contexts[0])
        if not count:
            return ChunkAttention(self._memory, None, self._frame_tokens)
        table = self._table(
            [r.pages_of([frame.place for frame in kept]) for r, kept in zip(rollouts, contexts, strict=True)]
        )
        positions = torch.arange(count, device=table.device)[None]
        span = Span(table, self._model.rotary(positions, *self._latent[1:]))
        return ChunkAttention(self._memory, span, self._frame_tokens)

    def _table(self, pages: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(pages, dtype=torch.int64, device=self._model.like.device)

    def _noise(self, step: int) -> Tensor:
        channels, height, width = self._latent
        shape = (channels, self._model.window.chunk, height, width)
        return torch.stack([rollout.noise(step, shape) for rollout in self.rollouts])
