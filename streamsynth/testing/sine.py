"""An engine that plays a tone of known phase and length, and misbehaves where its text says so.

Every character of an utterance stands for `samples_per_character` samples (divided by the request's speed). Directives
in the text make no sound: `{fail 3}` raises before chunk 3, `{stall 3}` makes nothing from there on, `{delay 50}` makes
each chunk 50 ms after the one before it. Text without a letter or digit is silence: an utterance of no samples.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamsynth.engine.stream import Emission, Interrupted
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.speech import Granularity, SpeechRequest
from streamsynth.testing.sine_pipeline import SAMPLE_RATE
from streamsynth.text.cutter import TextCutter

AMPLITUDE = 0.5

_DIRECTIVE = re.compile(r"\{(fail|stall|delay) (\d{1,6})\}")
_OPEN_DIRECTIVE = re.compile(r"\{[a-z]{0,5}( \d{0,6})?\Z")


def sine(
    first_sample: int, samples: int, *, frequency_hz: float = 440.0, sample_rate: int = SAMPLE_RATE
) -> npt.NDArray[np.float32]:
    """What the engine plays from `first_sample` on: float32 of shape (samples,), computed in float64."""
    position = np.arange(first_sample, first_sample + samples, dtype=np.float64)
    return (AMPLITUDE * np.sin(2 * np.pi * frequency_hz / sample_rate * position)).astype(np.float32)


class SineEngine:
    """A step keeps the worker busy for `step_ms`; with `real_time`, chunk k is made k chunk lengths after the first."""

    def __init__(
        self,
        *,
        frequency_hz: float = 440.0,
        samples_per_character: int = 1200,
        chunk_samples: int = 1920,
        real_time: bool = False,
        step_ms: float = 0.0,
        sample_rate: int = SAMPLE_RATE,
    ) -> None:
        for name, value in {"samples_per_character": samples_per_character, "chunk_samples": chunk_samples}.items():
            if value < 1:
                raise invalid_value(name, value, "at least 1")
        self.frequency_hz = frequency_hz
        self.samples_per_character = samples_per_character
        self.chunk_samples = chunk_samples
        self.real_time = real_time
        self.step_s = step_ms / 1000
        self.sample_rate = sample_rate
        self.live = 0
        self.opened = 0
        self.steps_after_interrupt = 0

    def open(self, request: Mapping[str, Any]) -> SineStream:
        self.live += 1
        self.opened += 1
        return SineStream(self, SpeechRequest.from_wire(dict(request)))

    def counters(self) -> dict[str, int]:
        return {"live": self.live, "opened": self.opened, "steps_after_interrupt": self.steps_after_interrupt}

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Segment:
    """What one container of the utterance says, and the sample before which it ends."""

    text: str
    end: int


class SineStream:
    """One utterance of the tone."""

    def __init__(self, engine: SineEngine, request: SpeechRequest) -> None:
        self._engine = engine
        self._samples_per_character = max(1, round(engine.samples_per_character / request.speed))
        self._limit = None if request.max_new_tokens is None else request.max_new_tokens * engine.chunk_samples
        self._cutter = None
        if request.granularity is not Granularity.NONE:
            self._cutter = TextCutter(clauses=request.granularity is Granularity.CLAUSE)
        self._pending = ""
        self._text = ""
        self._segments: list[_Segment] = []
        self._segment = 0
        self._segment_begun = False
        self._finished = False
        self._made = 0
        self._chunk = 0
        self._fail_at: int | None = None
        self._stall_at: int | None = None
        self._delay_s = engine.chunk_samples / engine.sample_rate if engine.real_time else 0.0
        self._not_before = 0.0
        self._interrupted = threading.Event()

    def push(self, text: str) -> None:
        self._pending += text
        self._take_text()

    def finish(self) -> None:
        self._finished = True
        self._take_text()

    def _take_text(self) -> None:
        """Move what is certain from pending text to segments, obeying directives on the way."""
        pending = _DIRECTIVE.sub(self._obey, self._pending)
        held = None if self._finished else _OPEN_DIRECTIVE.search(pending)
        cut = len(pending) if held is None else held.start()
        text, self._pending = pending[:cut], pending[cut:]
        if self._cutter is None:
            self._text += text
            self._segments = self._speaking([self._text])
            return
        self._cutter.push(text)
        if self._finished:
            self._cutter.finish()
        units = [unit.text for unit in iter(self._cutter.take, None)]
        self._segments += self._speaking(units, self._end)

    def _speaking(self, texts: list[str], start: int = 0) -> list[_Segment]:
        """Segments for those of the texts that have something to say."""
        segments = []
        for text in texts:
            if any(character.isalnum() for character in text):
                start += len(text) * self._samples_per_character
                segments.append(_Segment(text, start))
        return segments

    def _obey(self, directive: re.Match[str]) -> str:
        number = int(directive[2])
        match directive[1]:
            case "fail":
                self._fail_at = number
            case "stall":
                self._stall_at = number
            case _:
                self._delay_s = number / 1000
        return ""

    @property
    def _end(self) -> int:
        """The sample before which the text so far ends."""
        return self._segments[-1].end if self._segments else 0

    @property
    def _available(self) -> int:
        """As `_end`, within the request's limit."""
        return self._end if self._limit is None else min(self._end, self._limit)

    def wake_at(self) -> float | None:
        ready = self._available - self._made
        # A segment that more text cannot change is spoken to its end; an open one in whole chunks.
        certain = self._finished or (self._cutter is not None and ready > 0)
        return self._not_before if certain or ready >= self._engine.chunk_samples else None

    def step(self) -> Emission | None:
        if self._interrupted.is_set():
            self._engine.steps_after_interrupt += 1
            raise Interrupted
        if self._stall_at is not None and self._chunk >= self._stall_at:
            return None
        if self._fail_at is not None and self._chunk >= self._fail_at:
            message = f"told to fail at chunk {self._chunk}"
            raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
        if self._engine.step_s and self._interrupted.wait(self._engine.step_s):
            raise Interrupted
        return self._make()

    def _make(self) -> Emission:
        engine = self._engine
        segment = self._segments[self._segment] if self._segment < len(self._segments) else None
        end = min(segment.end, self._available) if segment else self._made
        units = min(engine.chunk_samples, end - self._made)
        samples = sine(self._made, units, frequency_hz=engine.frequency_hz, sample_rate=engine.sample_rate)
        self._made += units
        cut = self._limit is not None and self._made >= self._limit
        final = cut or (self._finished and self._made >= self._available)
        ended = segment is not None and (final or (self._cutter is not None and self._made >= segment.end))
        emission = Emission(
            samples,
            engine.sample_rate,
            segment=self._segment,
            segment_text=segment.text if segment and not self._segment_begun else None,
            segment_final=ended,
            final=final,
            finish_reason="length" if cut and self._end > self._made else "stop",
        )
        self._segment_begun = not ended
        self._segment += ended
        self._chunk += 1
        self._pace()
        return emission

    def _pace(self) -> None:
        now = time.monotonic()
        # Paced from when the chunk was due, so that delays do not add up; a stream that ran dry starts anew.
        due = self._not_before if now - self._not_before < 1.0 else now
        self._not_before = due + self._delay_s if self._delay_s else 0.0

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self._engine.live -= 1
