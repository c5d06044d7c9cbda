"""What one video session asks for, and what a video model can do: shared by the doors, the graph and the workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
class VideoRequest:
    """The checked parameters of one video; interactions follow while it runs.

    `num_frames` None runs until stopped. `seed` None draws one at random when the request is opened.
    """

    prompt: str
    width: int
    height: int
    num_frames: int | None = None
    seed: int | None = None
    negative_prompt: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, fields: dict[str, Any]) -> VideoRequest:
        return cls(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoTraits:
    """What a video pipeline can do; published by `/v1/limits`, and checked before admission.

    `sizes` are warmed, the first is the default. A chunk has `chunk_frames` pictures, the first one of a video
    `first_chunk_frames`. `interactions` are the event fields that the model serves. `negative_prompt`:
    whether the model uses one.
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


@dataclass(frozen=True, slots=True, eq=False)
class VideoChunk:
    """Pictures of a video: uint8 RGB of shape (n, height, width, 3), owned by the receiver.

    `first_frame` counts from the video's start at `fps` a second; chunks are contiguous. `report` says which of the
    model's chunks this belongs to, and what steered it; one of the model's chunks may come in several of these. The
    last one is `final` and may be empty.
    """

    pictures: npt.NDArray[np.uint8]
    fps: int
    first_frame: int
    report: ChunkReport
    final: bool = False
