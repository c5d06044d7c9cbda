"""A streaming decoder whose steps are captured once for each shape and repeated, as a GPU does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from streamsynth.engine.graphs import Work, repeating
from streamsynth.models.wan.streaming import LatentLayout, StreamingDecoder, StreamState


@dataclass(frozen=True, slots=True)
class LatentSize:
    """Of a latent frame."""

    height: int
    width: int


class CapturedDecoder:
    """As `decoder`, which also takes what was not captured: steps of `frames` latent frames of the given sizes, of up
    to `max_rows` streams that all begin or all go on, are captured when this is built, and none afterwards.

    What `decode` returns is good until it is called again.
    """

    def __init__(
        self, decoder: StreamingDecoder, *, sizes: Sequence[LatentSize], frames: int, max_rows: int, like: Tensor
    ) -> None:
        self.captures = 0
        self._decoder = decoder
        self._repeat = repeating(like.device)
        with torch.inference_mode(), _fastest_convolutions():
            memories = {size: _Memory(decoder, size, frames, max_rows, like) for size in sizes}
            # The largest first: the memory it takes serves the others too.
            self._steps = {
                (size, rows, first): _Step(decoder, memories[size], rows, first=first, capture=self._capture)
                for rows in range(max_rows, 0, -1)
                for size in sorted(sizes, key=lambda size: -size.height * size.width)
                for first in (False, True)
            }
        self._frames = frames

    @property
    def layout(self) -> LatentLayout:
        return self._decoder.layout

    def open_decoder(self) -> StreamState:
        return self._decoder.open_decoder()

    def decode(self, latents: Tensor, states: Sequence[StreamState]) -> Tensor:
        size = (latents.shape[3], latents.shape[4])
        first = states[0].units == 0
        alike = all((state.units == 0) is first and state.size in (None, size) for state in states)
        step = self._steps.get((LatentSize(*size), len(latents), first)) if alike else None
        if step is None or latents.shape[2] != self._frames or len(states) != len(latents):
            return self._decoder.decode(latents, states)
        return step.decode(latents, states)

    def _capture(self, work: Work) -> Work:
        self.captures += 1
        return self._repeat(work)


class _Memory:
    """What steps at one size work on: latents, and what each row's stream remembers."""

    def __init__(self, decoder: StreamingDecoder, size: LatentSize, frames: int, rows: int, like: Tensor) -> None:
        self.latents = like.new_zeros(rows, decoder.layout.channels, frames, size.height, size.width)
        self.rows = [self._begun(decoder) for _ in range(rows)]

    def _begun(self, decoder: StreamingDecoder) -> StreamState:
        state = decoder.open_decoder()
        decoder.decode(self.latents[:1], [state])
        state.memory = [None if tensor is None else tensor.clone() for tensor in state.memory]
        return state


class _Step:
    def __init__(
        self,
        decoder: StreamingDecoder,
        memory: _Memory,
        rows: int,
        *,
        first: bool,
        capture: Callable[[Work], Work],
    ) -> None:
        self._decoder = decoder
        self._first = first
        self._latents = memory.latents[:rows]
        self._rows = memory.rows[:rows]
        layout, (_, _, frames, height, width) = decoder.layout, self._latents.shape
        pictures = layout.picture_count(frames, after=0 if first else 1)
        self._pictures = self._latents.new_zeros(rows, 3, pictures, height * layout.scale, width * layout.scale)
        self._replay = capture(self._run)

    def decode(self, latents: Tensor, states: Sequence[StreamState]) -> Tensor:
        self._latents.copy_(latents)
        if not self._first:
            for row, state in zip(self._rows, states, strict=True):
                torch._foreach_copy_(_tensors(row), _tensors(state))
        self._replay()
        for row, state in zip(self._rows, states, strict=True):
            # A stream's tensors are never written into: others may hold them as they were.
            state.memory = [None if tensor is None else tensor.clone() for tensor in row.memory]
            state.units, state.size = state.units + latents.shape[2], row.size
        return self._pictures

    def _run(self) -> None:
        states = [self._decoder.open_decoder() if self._first else row.copy() for row in self._rows]
        self._pictures.copy_(self._decoder.decode(self._latents, states))
        for row, state in zip(self._rows, states, strict=True):
            torch._foreach_copy_(_tensors(row), _tensors(state))


def _tensors(state: StreamState) -> list[Tensor]:
    return [tensor for tensor in state.memory if tensor is not None]


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Convolutions are tried in several ways where they first run at a shape; what is captured keeps the fastest."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
