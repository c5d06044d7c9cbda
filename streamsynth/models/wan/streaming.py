"""Video autoencoders that work as the video comes: one interface for the full one and for the tiny one.

What a session's stream remembers is an object of that session; the modules keep nothing. Sessions whose streams are in
the same phase go through in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from streamsynth.errors import invalid_value


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentLayout:
    """How latents lie to pictures: a latent pixel is `scale` x `scale` of a picture's, a latent frame `pictures` of
    them, and the first latent frame of a stream `first_pictures`."""

    channels: int
    scale: int
    pictures: int
    first_pictures: int

    def picture_count(self, frames: int, *, after: int = 0) -> int:
        """How many pictures `frames` latent frames are, in a stream that has had `after` before them (V33)."""
        first = min(frames, 1) if after == 0 else 0
        return first * self.first_pictures + (frames - first) * self.pictures


@dataclass(slots=True)
class StreamState:
    """What one session's stream, one way through an autoencoder, keeps between steps.

    A step puts tensors in the place of those before and never writes into one: a `copy` is a snapshot that stays as it
    is, and costs nothing. `units` counts what went in: latent frames when decoding, pictures when encoding.
    """

    memory: list[Tensor | None]
    units: int = 0
    size: tuple[int, int] | None = None
    waiting: Tensor | None = field(default=None)
    """Pictures that do not fill a latent frame yet; only when encoding."""

    @classmethod
    def opened(cls, layers: int) -> StreamState:
        return cls([None] * layers)

    def reset(self) -> None:
        """Make the stream new."""
        self.memory = [None] * len(self.memory)
        self.units, self.size, self.waiting = 0, None, None

    def copy(self) -> StreamState:
        return StreamState(list(self.memory), self.units, self.size, self.waiting)


class Step:
    """One pass for a batch of streams: `take` what a layer kept, `keep` what it will take next time."""

    def __init__(self, memory: Sequence[Tensor | None], *, first: bool) -> None:
        self.first = first
        self.memory = list(memory)

    def take(self, layer: int) -> Tensor | None:
        """None at the start of a stream."""
        return self.memory[layer]

    def keep(self, layer: int, tensor: Tensor) -> None:
        self.memory[layer] = tensor


class StreamingDecoder(Protocol):
    """Latents, as the transformer makes them, to pictures."""

    @property
    def layout(self) -> LatentLayout: ...

    def open_decoder(self) -> StreamState: ...

    def decode(self, latents: Tensor, states: Sequence[StreamState]) -> Tensor:
        """latents (rows, channels, frames, height, width), with a state a row, to pictures (rows, 3, pictures,
        scale * height, scale * width) from -1 to 1; any number of frames at a time.

        Raises INVALID_VALUE, and changes no state, for streams whose phases or sizes differ.
        """


class StreamingEncoder(Protocol):
    """Pictures to latents, as the transformer takes them."""

    @property
    def layout(self) -> LatentLayout: ...

    def open_encoder(self) -> StreamState: ...

    def encode(self, pictures: Tensor, states: Sequence[StreamState]) -> Tensor:
        """pictures (rows, 3, pictures, height, width) from -1 to 1 to latents (rows, channels, frames, height / scale,
        width / scale). Pictures that do not fill a latent frame wait in the state: frames may be 0.
        """


def join(states: Sequence[StreamState]) -> list[Tensor | None]:
    """The memories of streams, rows beside each other; beside others a stream that is new has zeros."""
    if len(states) == 1:
        return list(states[0].memory)
    return [_joined(kept) for kept in zip(*(state.memory for state in states), strict=True)]


def _joined(kept: Sequence[Tensor | None]) -> Tensor | None:
    like = next((tensor for tensor in kept if tensor is not None), None)
    if like is None:
        return None
    return torch.cat([torch.zeros_like(like) if tensor is None else tensor for tensor in kept])


def part(memory: Sequence[Tensor | None], states: Sequence[StreamState]) -> None:
    """Give each stream its row back."""
    for row, state in enumerate(states):
        state.memory = [None if tensor is None else tensor[row : row + 1] for tensor in memory]


def check_batch(
    values: Tensor,
    states: Sequence[StreamState],
    *,
    channels: int,
    multiple: int,
    period: int = 1,
    first_differs: bool = True,
) -> None:
    """Raises INVALID_VALUE unless values (rows, channels, time, height, width) can go through with these states.

    Streams are in the same phase if they have taken as many units modulo `period` and, where a stream's first step
    differs from later ones, have all begun or none.
    """
    if values.dim() != 5 or values.shape[1] != channels:
        raise invalid_value("shape", tuple(values.shape), f"(rows, {channels}, time, height, width)")
    if len(values) != len(states) or not states:
        raise invalid_value("states", len(states), f"one a row ({len(values)})")
    size = (values.shape[3], values.shape[4])
    if size[0] % multiple or size[1] % multiple:
        raise invalid_value("size", size, f"multiples of {multiple}")
    for state in states:
        if state.size not in (None, size):
            raise invalid_value("size", size, f"that of the stream, {state.size}")
        begun_alike = not first_differs or (state.units == 0) == (states[0].units == 0)
        if not begun_alike or (state.units - states[0].units) % period:
            raise invalid_value("states", [each.units for each in states], "in the same phase")
