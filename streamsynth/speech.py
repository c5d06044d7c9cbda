"""What one utterance asks for, and what a speech model can do: shared by the doors, the graph and the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_TEXT_CHARACTERS = 64 << 10
"""Of one utterance, whatever surface it comes through; a server may set its own limit below it."""


class Granularity(StrEnum):
    """Where an utterance is cut into containers (`audio.start` .. `audio.done`)."""

    NONE = "none"
    SENTENCE = "sentence"
    CLAUSE = "clause"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeechRequest:
    """The checked parameters of one utterance; its text follows in pieces.

    `seed` None draws one at random when the request is opened. `max_new_tokens` bounds the audio in the model's own
    tokens (None: the model's cap). `options` are model-specific fields that the pipeline declared.
    """

    voice: str
    speed: float = 1.0
    seed: int | None = None
    max_new_tokens: int | None = None
    granularity: Granularity = Granularity.NONE
    options: dict[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        return {
            "voice": self.voice,
            "speed": self.speed,
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
            "granularity": self.granularity.value,
            "options": self.options,
        }

    @classmethod
    def from_wire(cls, fields: dict[str, Any]) -> SpeechRequest:
        return cls(**{**fields, "granularity": Granularity(fields["granularity"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Voice:
    id: str
    name: str
    languages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeechTraits:
    """What a speech pipeline can do; published by `/v1/limits` and `/v1/audio/voices`, and checked before admission.

    `speed` is the inclusive range the model itself was made for. `token` says what one of the model's output
    tokens is, `token_samples` how many samples it stands for.
    `supported_hints` are the optional request fields (of protocol.md section 0) that the model really uses.
    """

    sample_rate: int
    voices: tuple[Voice, ...]
    default_voice: str
    speed: tuple[float, float] = (1.0, 1.0)
    max_audio_seconds: float = 600.0
    token: str = "12.5 ms of audio"
    token_samples: int = 300
    supported_hints: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()

    @property
    def max_new_tokens(self) -> int:
        """The model's own cap, and so the highest that a request may set: `max_audio_seconds` in tokens."""
        return int(self.max_audio_seconds * self.sample_rate) // self.token_samples


@dataclass(frozen=True, slots=True, eq=False)
class AudioChunk:
    """A piece of an utterance: mono float32 samples of shape (n,), full scale 1.0, owned by the receiver.

    `first_sample` counts from the utterance's start at `sample_rate` Hz; chunks are contiguous. `segment` counts the
    containers that the granularity asks for; `segment_text` comes with a segment's first chunk, `segment_final` with
    its last, `final` with the utterance's last. The last chunk may be empty.
    """

    samples: npt.NDArray[np.float32]
    sample_rate: int
    first_sample: int
    segment: int = 0
    segment_text: str | None = None
    segment_final: bool = False
    final: bool = False
