"""One request of a codec stage: its frames as they come, and its samples as they leave."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamsynth.engine.stream import Emission
from streamsynth.graph.chunk import Chunk
from streamsynth.models.mimi.stretch import Stretcher

if TYPE_CHECKING:
    from streamsynth.models.mimi.engine import MimiEngine

MAX_FRAMES = 8
COMFORTABLE_LEAD_S = 0.4
"""A listener who has this much in hand can wait until a larger chunk is ready, which costs less to decode."""

COMFORTABLE_FRAMES = 4

HUNGRY_LEAD_S = 2.0
"""A listener who has more in hand may be waited for: how fast frames come then says nothing."""


@dataclass(slots=True)
class _Run:
    """Frames of one passage that wait to be decoded, int64 (frames, codebooks), with the marks of their segment.

    `pause`: units of silence behind the passage, which ends there.
    """

    codes: npt.NDArray[np.int64]
    segment: int
    text: str | None
    ends_segment: bool
    final: bool
    pause: int

    @property
    def complete(self) -> bool:
        """Nothing will join it."""
        return self.ends_segment or self.final or self.pause > 0


class CodecStream:
    """One stream of the decoder. Small chunks while its listener has little in hand, larger ones after that."""

    def __init__(self, engine: MimiEngine, slot: int, speed: float, limit: int | None) -> None:
        self.slot = slot
        self.consumed = 0
        self._engine = engine
        self._runs: deque[_Run] = deque()
        self._samples = 0
        self._first_at: float | None = None
        self._first_frames = 0
        self._fed_at: float | None = None
        self._text: str | None = None
        self._speed = speed
        self._samples_left = limit
        self._joiner = engine.open_joiner()
        self._stretcher = self._open_stretcher()

    def feed(self, chunk: Chunk) -> None:
        marks = chunk.marks
        self._keep_pace(chunk)
        self._runs.append(
            _Run(
                chunk.array.astype(np.int64).reshape(-1, self._engine.codebooks),
                marks.get("segment", 0),
                marks.get("segment_text"),
                marks.get("segment_final", False),
                chunk.final,
                marks.get("pause", 0),
            )
        )
        self._join()

    def _keep_pace(self, chunk: Chunk) -> None:
        """Let the engine know how long a frame was in coming, if somebody waits for it."""
        now = time.monotonic()
        if self._fed_at is not None and chunk.units and self._lead_s(now) < HUNGRY_LEAD_S:
            self._engine.pace.add(now - self._fed_at, chunk.units / chunk.rate / self._speed)
        passage_ends = chunk.final or chunk.marks.get("pause", 0) > 0
        self._fed_at = None if passage_ends else now
        if not self._first_frames:
            self._first_frames = self._engine.pace.first_frames

    def _lead_s(self, now: float) -> float:
        """What a listener who began with the first sample has in hand."""
        return 0.0 if self._first_at is None else self._first_at + self._samples / self._engine.sample_rate - now

    def _join(self) -> None:
        """Make one run of the last two if they belong to one passage."""
        if len(self._runs) < 2:
            return
        before, last = self._runs[-2], self._runs[-1]
        if before.complete or before.segment != last.segment:
            return
        before.codes = np.concatenate((before.codes, last.codes))
        before.text = before.text if before.text is not None else last.text
        before.ends_segment, before.final, before.pause = last.ends_segment, last.final, last.pause
        self._runs.pop()

    @property
    def ready_frames(self) -> int:
        """Frames that one step may take: of one passage."""
        return min(len(self._runs[0].codes), MAX_FRAMES) if self._runs else 0

    @property
    def ends_now(self) -> bool:
        """Whether the first run is complete: nothing will join it."""
        return bool(self._runs) and (self._runs[0].complete or len(self._runs) > 1)

    def wake_at(self) -> float | None:
        if not self._runs:
            return None
        if self._first_at is None and self.ready_frames < self._first_frames and not self.ends_now:
            return None
        if self.ends_now or self._first_at is None or self.ready_frames >= COMFORTABLE_FRAMES:
            return 0.0
        # When the listener's lead will have shrunk to what is no longer comfortable.
        return self._first_at + self._samples / self._engine.sample_rate - COMFORTABLE_LEAD_S

    def take(self, frames: int) -> npt.NDArray[np.int64]:
        """The next `frames` frames, (frames, codebooks); what is left of the run stays."""
        run = self._runs[0]
        codes, run.codes = run.codes[:frames], run.codes[frames:]
        self.consumed += frames * self._engine.frame_units
        return codes

    def emit(self, samples: npt.NDArray[np.float32]) -> Emission | None:
        """What was just taken, as sound; ends the run if it is used up. None: there was nothing to hear yet."""
        run = self._runs[0]
        used_up = not len(run.codes)
        over = used_up and run.complete
        samples = self._shape(run, samples, over)
        self._text, run.text = self._text if run.text is None else run.text, None
        if used_up:
            self._runs.popleft()
        if not (over or len(samples)):
            return None
        if self._first_at is None and len(samples):
            self._first_at = time.monotonic()
        self._samples += len(samples)
        text, self._text = self._text, None
        return Emission(
            samples,
            self._engine.sample_rate,
            segment=run.segment,
            segment_text=text,
            segment_final=over and run.ends_segment,
            final=over and run.final,
            consumed=self.consumed,
        )

    def _shape(self, run: _Run, samples: npt.NDArray[np.float32], over: bool) -> npt.NDArray[np.float32]:
        """Decoded samples at the speed that was asked for, from where they can be heard; `over` ends their passage."""
        if self._stretcher is not None:
            samples = self._stretcher.push(samples)
            if over:
                samples = np.concatenate((samples, self._stretcher.finish(self._joiner.block)))
        samples = self._joiner.speech(samples)
        if over and run.pause:
            samples = np.concatenate((samples, self._joiner.pause(self._pause_samples(run))))
            self._joiner.begin()
            self._stretcher = self._open_stretcher()
            self._engine.reset(self)
        elif over and run.final:
            samples = self._joiner.fade_out(samples)
        if self._samples_left is not None:
            samples = samples[: self._samples_left]
            self._samples_left -= len(samples)
        return samples

    def _pause_samples(self, run: _Run) -> int:
        return round(run.pause // self._engine.frame_units * self._engine.frame_samples / self._speed)

    def _open_stretcher(self) -> Stretcher | None:
        return Stretcher(self._engine.sample_rate, self._speed) if self._speed != 1.0 else None

    def step(self) -> Emission | None:
        raise AssertionError("a codec's streams are stepped together")

    def interrupt(self) -> None:
        """A step is short, and shared with other streams: it runs to its end."""

    def close(self) -> None:
        self._engine.free(self)
