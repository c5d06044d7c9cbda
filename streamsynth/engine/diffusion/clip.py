"""What the diffusion engine needs from a model that makes whole clips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from streamsynth.video import VideoRequest, VideoTraits


class Clip(Protocol):
    """One request being made: its state, and how many of its `steps` are done. It is `ready` unless it is made
    elsewhere, and nothing has come of that since it was last advanced.

    Once all are, `pictures` are there: uint8 (n, height, width, 3) on the model's device, perhaps still being computed
    on its current stream. `error` is what ended the clip instead.
    """

    step: int
    steps: int
    pictures: Tensor | None
    error: Exception | None

    @property
    def ready(self) -> bool: ...

    def close(self) -> None:
        """Begin no further step of it. Does not block; a step in flight runs to its end."""


class ClipModel(Protocol):
    """A loaded model, for at most `capacity` clips at once. A request for `fewest_steps` is the shortest that shows how
    a step follows another."""

    traits: VideoTraits
    device: torch.device
    capacity: int
    fewest_steps: int

    @property
    def room(self) -> int:
        """How many more it can take up now; a clip counts until its last step has ended, closed or not."""

    def check(self, request: VideoRequest) -> None:
        """Raise StreamSynthError for what the model cannot make, naming field and limit."""

    def begin(self, request: VideoRequest) -> Clip:
        """Take up a checked request, whose frames and seed are set; does no work yet."""

    def advance(self, clips: Sequence[Clip]) -> None:
        """Bring each a step further, those whose shapes agree together. What fails is that clip's `error`."""

    def counters(self) -> dict[str, int]: ...

    def close(self) -> None: ...
