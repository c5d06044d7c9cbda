"""Which latent frames a rollout still attends to: a sink that stays, and a window that slides. Pure: no tensors.

A frame has three positions, and they are never mixed up: its absolute index, which grows for ever; its rotary position,
which is its rank among the frames kept and so never leaves what the model was trained on; and its place, where its keys
and values lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

FrameIndex = NewType("FrameIndex", int)
RotaryPosition = NewType("RotaryPosition", int)
Place = NewType("Place", int)
PromptVersion = NewType("PromptVersion", int)


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPolicy:
    """`frames` latent frames of keys in all: the first `sink` for ever, the latest of the others, and the `chunk` being
    made. Raises ValueError unless all are whole chunks: a rollout starts and forgets by the chunk.
    """

    frames: int
    sink: int
    chunk: int

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ValueError(f"a chunk of {self.chunk} latent frames; it needs at least 1")
        if self.sink < 0 or self.sink % self.chunk or self.frames % self.chunk:
            raise ValueError(
                f"a window of {self.frames} latent frames, with a sink of {self.sink}, must be chunks of {self.chunk}"
            )
        if self.frames < self.sink + 2 * self.chunk:
            raise ValueError(
                f"a window of {self.frames} latent frames has no room for a sink of {self.sink}, and a chunk of"
                f" {self.chunk} before the one being made"
            )


@dataclass(frozen=True, slots=True)
class KeptFrame:
    """A committed frame: its absolute index, where its keys lie, and the prompt they were computed under."""

    index: FrameIndex
    place: Place
    prompt: PromptVersion


@dataclass(slots=True)
class FrameWindow:
    """The committed frames of one rollout, oldest first. `places` were reserved for it, one for each frame kept."""

    policy: WindowPolicy
    next_index: FrameIndex = FrameIndex(0)
    kept: list[KeptFrame] = field(default_factory=list)

    @property
    def rotary_start(self) -> RotaryPosition:
        """The rotary position of the first frame of the next chunk; the kept frames have those before it."""
        return RotaryPosition(len(self.kept))

    @property
    def sink(self) -> list[KeptFrame]:
        """The kept frames that never slide out."""
        return self.kept[: self.policy.sink]

    @property
    def sliding(self) -> list[KeptFrame]:
        return self.kept[self.policy.sink :]

    def places_to_write(self) -> list[Place]:
        """Where the next chunk's keys go. The places of frames that a commit would push out are not among them, so that
        the commit itself can still read those."""
        taken = {frame.place for frame in self.kept}
        free = (Place(place) for place in range(self.policy.frames) if place not in taken)
        return [next(free) for _ in range(self.policy.chunk)]

    def commit(self, places: list[Place], prompt: PromptVersion) -> list[KeptFrame]:
        """Keep the chunk whose keys were written at `places`; returns the frames that it pushed out."""
        if len(places) != self.policy.chunk:
            raise ValueError(f"a chunk of {len(places)} latent frames; this rollout's have {self.policy.chunk}")
        for place in places:
            self.kept.append(KeptFrame(self.next_index, place, prompt))
            self.next_index = FrameIndex(self.next_index + 1)
        surplus = max(0, len(self.kept) + self.policy.chunk - self.policy.frames)
        start = self.policy.sink
        pushed_out = self.kept[start : start + surplus]
        del self.kept[start : start + surplus]
        return pushed_out

    def recached(self, chunk: list[KeptFrame], prompt: PromptVersion) -> None:
        """Say that the keys of these kept frames were computed again, in place, under another prompt."""
        again = {frame.index for frame in chunk}
        self.kept = [
            KeptFrame(frame.index, frame.place, prompt) if frame.index in again else frame for frame in self.kept
        ]

    def chunks_to_recache(self) -> list[list[KeptFrame]]:
        """The sliding frames by the chunk, oldest first. The sink stays as it was: it is what holds the scene."""
        frames, size = self.sliding, self.policy.chunk
        return [frames[start : start + size] for start in range(0, len(frames), size)]

    def forget(self) -> None:
        """Drop every frame, the sink too; absolute indices go on."""
        self.kept.clear()
