"""What goes into and comes out of the speech session's state machine, beside messages and frames. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from streamsynth.errors import ErrorCode
from streamsynth.realtime.socket_session import End as End
from streamsynth.realtime.utterance import Meter

if TYPE_CHECKING:
    from streamsynth.realtime.session_config import SessionSettings


@dataclass(frozen=True, slots=True)
class StartSynthesis:
    """Open a flow for the utterance. Its text follows, its events are awaited."""

    index: int
    settings: SessionSettings


@dataclass(frozen=True, slots=True)
class PushText:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class FinishText:
    index: int


@dataclass(frozen=True, slots=True)
class StopSynthesis:
    """Cancel the flow at once; nothing it still makes is wanted."""

    index: int


Effect = StartSynthesis | PushText | FinishText | StopSynthesis | End


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """The first audio of a container is there. `text` None: the whole utterance's, or not known."""

    text: str | None
    format: str
    sample_rate: int
    channels: int


@dataclass(frozen=True, slots=True)
class Audio:
    """One binary frame of whole sample frames (of a whole file's slices, when audio does not stream)."""

    data: bytes | memoryview
    samples: int


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    pass


Piece = ContainerStart | Audio | ContainerEnd


class Observer(Protocol):
    """Hears what is worth measuring."""

    def utterance_started(self, model: str, sample_rate: int, now_s: float) -> Meter: ...

    def refused(self, code: ErrorCode) -> None: ...

    def cancel_acknowledged(self, seconds: float) -> None: ...
