"""What a talker speaks in one go, what it goes on from, and the front end that makes it of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from streamsynth.errors import invalid_value


@dataclass(frozen=True, slots=True)
class Passage:
    """Text that is spoken in one go: each row's prompt, int64 (length, width), and where it stands in the segments.

    `text` is the segment's, with its first passage; `max_frames` ends a passage that does not end itself, and slow
    speech takes up to `usual_frames`; `pause` is how many frames of silence follow it, in the request's count of frames
    too. `voice` (length, width) stands before all else, also before what the passage goes on from.
    """

    prompts: Sequence[Tensor]
    max_frames: int
    segment: int
    text: str | None
    ends_segment: bool
    pause: int = 0
    usual_frames: int = 0
    voice: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """How passages of a request go on from one another: the prompt and the frames of the one before come first.

    They are at most `positions`, of the `row_positions` that a row may have: where there are more, or no room for them,
    the passage stands alone, since a part of them would pair words with the wrong sound. So it does where it would be
    longer than `trained_positions`, which the model knows. `end` are input positions (width,) behind the frames.
    """

    positions: int
    row_positions: int
    trained_positions: int | None = None
    end: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        if self.positions < 1:
            raise invalid_value("context_positions", self.positions, "at least 1")

    def of(self, prompt: Tensor, frames: Sequence[Tensor]) -> Tensor | None:
        """What the passage behind one of this prompt and these frames goes on from, (length, width)."""
        length = len(prompt) + len(frames) + len(self.end)
        return torch.cat((prompt, torch.stack([*frames, *self.end]))) if frames and length <= self.positions else None

    def before(self, passage: Passage, said: Tensor | None) -> Sequence[Tensor]:
        """The prompts of a passage that goes on from what was `said`; its own where it stands alone."""
        if said is None:
            return passage.prompts
        prompt = len(said) + max(len(prompt) for prompt in passage.prompts)
        known = self.trained_positions is None or prompt + passage.usual_frames <= self.trained_positions
        fits = known and prompt + passage.max_frames <= self.row_positions
        return [torch.cat((said, prompt)) for prompt in passage.prompts] if fits else passage.prompts


class Reader(Protocol):
    """A family's front end for one request: text in, passages out, each as soon as it is certain."""

    def push(self, text: str) -> None:
        """Append text; raises StreamSynthError for what the model cannot say."""

    def finish(self) -> None: ...

    def take(self) -> Passage | None:
        """The next passage, or None while none is certain.

        Raises StreamSynthError where the text goes on with what the model cannot say: what came before is spoken first.
        """

    @property
    def exhausted(self) -> bool:
        """No passage is left and none will come."""
