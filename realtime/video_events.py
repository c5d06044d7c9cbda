"""What goes into and comes out of the video session's state machine, beside messages and frames. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from streamsynth.errors import ErrorCode
from streamsynth.interactions.messages import Interaction
from streamsynth.realtime.video_fields import VideoSettings


@dataclass(frozen=True, slots=True)
class StartVideo:
    """Open a flow; what it makes is awaited."""

    settings: VideoSettings


@dataclass(frozen=True, slots=True)
class Steer:
    """Pass the interaction to the running video."""

    interaction: Interaction


@dataclass(frozen=True, slots=True)
class FinishVideo:
    """Begin no further chunk; what is made is still wanted."""


@dataclass(frozen=True, slots=True)
class StopVideo:
    """Cancel the flow at once; nothing it still makes is wanted."""


Effect = StartVideo | Steer | FinishVideo | StopVideo


class Meter(Protocol):
    """What measures one video on its way out."""

    def sent(self, frames: int, now_s: float) -> None: ...

    def applied(self, seconds: float) -> None:
        """From the arrival of an interaction to the beginning of the first chunk that it affects."""

    def delivered(self, seconds: float) -> None:
        """From the arrival of an interaction until the transport took the first payload that it affects."""

    def dropped(self, frames: int) -> None: ...

    def ended(self, status: str) -> None: ...


class Observer(Protocol):
    """Hears what is worth measuring."""

    def video_started(self, model: str, fps: int, now_s: float) -> Meter: ...

    def refused(self, code: ErrorCode) -> None: ...
