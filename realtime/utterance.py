"""One utterance of a speech session: its text until synthesis takes it, and counts of what was made and sent. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol
from unicodedata import category

from streamsynth.realtime.speech_messages import SessionDone

if TYPE_CHECKING:
    from streamsynth.realtime.session_config import SessionSettings


_SPEAKABLE = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "Sc", "Sm"})
_SPEAKABLE_SIGNS = frozenset("%‰&@#§")


class Stage(Enum):
    WAITING = auto()
    """Collects text, or stands in line behind earlier utterances."""
    SPEAKING = auto()
    """Its synthesis runs."""
    OVER = auto()
    """Its synthesis failed, or came to its limit, before the flush, which its `session.done` will answer."""
    SPOKEN = auto()
    """Its `session.done` is queued; until the transport takes that, a cancel still works."""


class Meter(Protocol):
    """What measures one utterance on its way out."""

    def sent(self, samples: int, now_s: float) -> None: ...

    def ended(self, status: str) -> None: ...


@dataclass(slots=True)
class Container:
    """What was queued since `audio.start`."""

    total_bytes: int = 0
    total_samples: int = 0
    sample_rate: int = 1


@dataclass(slots=True, eq=False)
class Utterance:
    """`sentences` and `total_*` count what was queued; `sentences_sent` and `samples_sent` what the transport took.
    `status` and `finish_reason` say how it ended, once it has.
    """

    index: int
    settings: SessionSettings
    stage: Stage = Stage.WAITING
    flushed: bool = False
    speakable: bool = False
    characters: int = 0
    request_id: str | None = None
    sentences: int = 0
    total_samples: int = 0
    total_bytes: int = 0
    sentences_sent: int = 0
    samples_sent: int = 0
    container: Container | None = None
    meter: Meter | None = None
    status: str = "completed"
    finish_reason: str | None = None
    _pieces: list[str] = field(default_factory=list)

    def append(self, text: str) -> None:
        self._pieces.append(text)
        self.characters += len(text)
        self.speakable = self.speakable or is_speakable(text)

    def take_text(self) -> str:
        """The text that synthesis has not been given yet."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    def session_done(self) -> SessionDone:
        return SessionDone(
            utterance_index=self.index,
            total_sentences=self.sentences,
            status=self.status,
            total_samples=self.total_samples,
            finish_reason=self.finish_reason,
        )


def is_speakable(text: str) -> bool:
    """Whether some voice could say any of it: text of spaces, punctuation and pictures alone is an empty utterance.

    A sign such as % or € is for the model to decide: it may make no audio, which is an empty utterance too.
    """
    return any(category(character) in _SPEAKABLE or character in _SPEAKABLE_SIGNS for character in text)
