"""What one video session asks for, and what a video model can do: shared by the doors, the graph and the workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from streamsynth.interactions.events import MAX_PROMPT_CHARACTERS
from streamsynth.interactions.messages import ChunkReport
from streamsynth.interactions.steering import DEFAULT_TRANSITION_CHUNKS


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A picture's, in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeRange:
    """Sizes that a model makes beside those it lists: sides that are multiples, within bounds and an area."""

    multiple: int
    min_side: int
    max_side: int
    max_pixels: int

    def __contains__(self, size: Size) -> bool:
        sides = (size.width, size.height)
        fits = all(self.min_side <= side <= self.max_side and side % self.multiple == 0 for side in sides)
        return fits and size.width * size.height <= self.max_pixels

    def __str__(self) -> str:
        sides = f"sides of {self.min_side} to {self.max_side} that are multiples of {self.multiple}"
        return f"{sides}, {self.max_pixels} pixels in all"


MAX_GUIDANCE = 100.0
"""The most that `VideoRequest.guidance` may be."""

MAX_PICTURE_BYTES = 24 << 20
"""Of the file that a request brings: it travels to the worker in one message."""


class PictureUse(StrEnum):
    """Whether a request may bring a picture to begin with."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoRequest:
    """The checked parameters of one video; interactions follow while it runs.

    `num_frames` None runs until stopped. `seed` None draws one at random when the request is opened. `steps` and
    `guidance` None are the model's own. `picture` is what it begins with, as the bytes of a PNG, JPEG or WebP file.
    An image is a video of one frame.
    """

    prompt: str
    width: int
    height: int
    num_frames: int | None = None
    seed: int | None = None
    negative_prompt: str | None = None
    steps: int | None = None
    guidance: float | None = None
    picture: bytes | None = None

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, fields: dict[str, Any]) -> VideoRequest:
        return cls(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoTraits:
    """What a video pipeline can do; published by `/v1/limits`, and checked before admission.

    `sizes` are warmed, the first is the default; `size_range` offers more. A chunk has `chunk_frames` pictures, the
    first one of a video `first_chunk_frames`. `interactions` are the event fields that the model serves.
    `negative_prompt`, `guidance`: whether the model uses one. `kinds` of "video" and "image" say what it makes.
    A model that is not `realtime` makes whole clips: `num_frames` is `frame_step` times a whole number, and one more,
    and `default_frames` where a request says none. `max_steps` None: how many it takes is the model's own.
    """

    sizes: tuple[Size, ...]
    fps: int
    chunk_frames: int
    first_chunk_frames: int
    interactions: frozenset[str] = frozenset({"prompt"})
    default_transition_chunks: int = DEFAULT_TRANSITION_CHUNKS
    max_prompt_characters: int = MAX_PROMPT_CHARACTERS
    max_frames: int = 24 * 3600 * 60
    negative_prompt: bool = False
    size_range: SizeRange | None = None
    kinds: frozenset[str] = frozenset({"video"})
    realtime: bool = True
    frame_step: int = 1
    default_frames: int | None = None
    max_steps: int | None = None
    guidance: bool = False
    picture: PictureUse = PictureUse.NONE

    def offers(self, size: Size) -> bool:
        return size in self.sizes or (self.size_range is not None and size in self.size_range)

    def describe_sizes(self) -> str:
        """What an error says is offered."""
        listed = ", ".join(str(size) for size in self.sizes)
        return listed if self.size_range is None else f"{listed}; {self.size_range}"


@dataclass(frozen=True, slots=True, eq=False)
class VideoChunk:
    """Pictures of a video: uint8 RGB of shape (n, height, width, 3), owned by the receiver.

    `first_frame` counts from the video's start at `fps` a second; chunks are contiguous. `report` says which of the
    model's chunks this belongs to, and what steered it; one of the model's chunks may come in several of these. The
    last one is `final`. That of a video that was stopped may be empty: its report has the number of chunks before it.
    """

    pictures: npt.NDArray[np.uint8]
    fps: int
    first_frame: int
    report: ChunkReport
    final: bool = False
