"""Decoding steps that repeat: on CUDA each size is captured once, and a step of fewer streams is rounded up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from streamsynth.engine.graphs import repeating
from streamsynth.models.mimi.decoder import MimiDecoder


class CapturedDecoder:
    """As calling the decoder with a state of `slots` streams; `frames` are the lengths that a step may have.

    One more slot takes what padding rows write.
    """

    def __init__(self, decoder: MimiDecoder, *, slots: int, frames: Sequence[int]) -> None:
        self._decoder = decoder
        self._state = decoder.open_state(slots + 1, max_frames=max(frames))
        self.padding = slots
        capture = repeating(decoder.device)
        rows = [1 << power for power in range((slots - 1).bit_length())] + [slots]
        # The largest first: the memory it takes then serves the others too.
        self._steps = {
            count: [_Step(self, decoder, size, count, capture) for size in reversed(rows)]
            for count in sorted(frames, reverse=True)
        }

    def reset(self, slot: int) -> None:
        self._state.reset(slot)

    def __call__(self, codes: Tensor, slots: Sequence[int]) -> Tensor:
        """codes (streams, codebooks, frames) int64 on the CPU to samples (streams, samples) there, float32."""
        streams, _, frames = codes.shape
        step = next(step for step in reversed(self._steps[frames]) if step.size >= streams)
        step.codes[:streams].copy_(codes)
        step.rows.copy_(torch.tensor([*slots, *[self.padding] * (step.size - streams)]))
        step.active.copy_(torch.arange(step.size) < streams)
        step.replay()
        return step.samples[:streams].cpu()

    def run(self, step: _Step) -> Tensor:
        return self._decoder(step.codes, self._state, rows=step.rows, active=step.active)


class _Step:
    def __init__(
        self,
        owner: CapturedDecoder,
        decoder: MimiDecoder,
        size: int,
        frames: int,
        capture: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        device = decoder.device
        self.size = size
        self.codes = torch.zeros((size, decoder.config.num_quantizers, frames), dtype=torch.int64, device=device)
        self.rows = torch.full((size,), owner.padding, dtype=torch.int64, device=device)
        self.active = torch.zeros(size, dtype=torch.bool, device=device)
        self.samples = torch.zeros((size, frames * decoder.config.frame_samples), device=device)

        def run() -> None:
            self.samples.copy_(owner.run(self))

        self.replay = capture(run)
