"""Making the next chunk of several videos whose shapes agree, one forward pass at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from streamsynth.engine.rollout.forwards import Forwards
from streamsynth.engine.rollout.model import VideoModel
from streamsynth.engine.rollout.rollout import Rollout
from streamsynth.engine.rollout.window import PromptVersion
from streamsynth.interactions.messages import Kv


class PassKind(StrEnum):
    """What a pass is for, in the order of a chunk."""

    RECACHE = "recache"
    DENOISE = "denoise"
    DECODE = "decode"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass that was launched. A decode has made pictures, uint8 (pictures, height, width, 3) for each rollout."""

    kind: PassKind
    pictures: Sequence[Tensor] | None = None


class ChunkMaker:
    """Denoises, decodes and commits. All its rollouts have pages, a plan, and the same `shape`."""

    def __init__(self, model: VideoModel, forwards: Forwards, rollouts: Sequence[Rollout]) -> None:
        self.rollouts = rollouts
        self._model = model
        self._forwards = forwards
        self._latent = model.latent_shape(rollouts[0].request.width, rollouts[0].request.height)

    def passes(self) -> Iterator[Pass]:
        """Do one pass for each item. The commit comes after the decode: it is for the next chunk's sake."""
        yield from self._recache()
        places = [rollout.window.places_to_write() for rollout in self.rollouts]
        self._forwards.begin(self.rollouts, self.rollouts[0].window.rotary_start, places)
        latents = yield from self._denoise()
        yield Pass(PassKind.DECODE, self._model.decode(latents, [rollout.decoder for rollout in self.rollouts]))
        self._forwards.commit(latents)
        for rollout, written, clean in zip(self.rollouts, places, latents, strict=True):
            rollout.keep(written, clean)
        yield Pass(PassKind.COMMIT)

    def _denoise(self) -> Generator[Pass, None, Tensor]:
        denoiser = self._model.denoiser
        latents = self._noise(0)
        for step, timestep in enumerate(denoiser.timesteps):
            flow = self._forwards.flow(latents, timestep)
            noise = self._noise(step + 1) if denoiser.needs_noise(step) else None
            latents = denoiser.advance(latents, flow, step, noise)
            yield Pass(PassKind.DENOISE)
        return latents

    def _recache(self) -> Iterator[Pass]:
        """Compute the sliding frames' keys again where the plan asks for it, oldest first: each chunk sees those before
        it as they are by then.
        """
        for rollout in self.rollouts:
            assert rollout.plan is not None
            if rollout.plan.kv is not Kv.RECACHE:
                continue
            version = PromptVersion(rollout.plan.prompt_version)
            for number, chunk in enumerate(rollout.window.chunks_to_recache()):
                before = len(rollout.window.sink) + number * len(chunk)
                self._forwards.begin([rollout], before, [[frame.place for frame in chunk]])
                self._forwards.commit(torch.stack([rollout.latents[frame.index] for frame in chunk], 1)[None])
                rollout.window.recached(chunk, version)
                yield Pass(PassKind.RECACHE)

    def _noise(self, step: int) -> Tensor:
        channels, height, width = self._latent
        shape = (channels, self._model.window.chunk, height, width)
        return torch.stack([rollout.noise(step, shape) for rollout in self.rollouts])
