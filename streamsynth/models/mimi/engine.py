"""A codec stage: code frames of many streams in, samples out, decoded together where they are ready together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamsynth.engine.stream import Emission, StepResult, Stream
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Chunk
from streamsynth.models.mimi.captured import CapturedDecoder
from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.joins import Joiner
from streamsynth.models.mimi.pace import Pace

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

    def __init__(self, engine: MimiEngine, slot: int) -> None:
        self.slot = slot
        self.consumed = 0
        self._engine = engine
        self._runs: deque[_Run] = deque()
        self._samples = 0
        self._first_at: float | None = None
        self._first_frames = 0
        self._fed_at: float | None = None
        self._joiner = engine.open_joiner()

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
            self._engine.pace.add(now - self._fed_at, chunk.units / chunk.rate)
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
        ended = not len(run.codes)
        samples = self._joiner.speech(samples)
        if ended:
            samples = self._end_passage(run, samples)
        elif not len(samples):
            return None
        if self._first_at is None and len(samples):
            self._first_at = time.monotonic()
        self._samples += len(samples)
        emission = Emission(
            samples,
            self._engine.sample_rate,
            segment=run.segment,
            segment_text=run.text,
            segment_final=ended and run.ends_segment,
            final=ended and run.final,
            consumed=self.consumed,
        )
        run.text = None
        if ended:
            self._runs.popleft()
        return emission

    def _end_passage(self, run: _Run, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if run.pause:
            pause = self._joiner.pause(run.pause // self._engine.frame_units * self._engine.frame_samples)
            self._joiner.begin()
            self._engine.reset(self)
            return np.concatenate((samples, pause))
        return self._joiner.fade_out(samples) if run.final else samples

    def step(self) -> Emission | None:
        raise AssertionError("a codec's streams are stepped together")

    def interrupt(self) -> None:
        """A step is short, and shared with other streams: it runs to its end."""

    def close(self) -> None:
        self._engine.free(self)


class _Decoding(Protocol):
    def reset(self, slot: int) -> None: ...

    def __call__(self, codes: Tensor, slots: Sequence[int]) -> Tensor:
        """codes (streams, codebooks, frames) int64 to samples (streams, samples) float32, both on the CPU."""


class _PlainDecoder:
    def __init__(self, decoder: MimiDecoder, slots: int) -> None:
        self._decoder = decoder
        self._state = decoder.open_state(slots, max_frames=MAX_FRAMES)

    def reset(self, slot: int) -> None:
        self._state.reset(slot)

    def __call__(self, codes: Tensor, slots: Sequence[int]) -> Tensor:
        samples: Tensor = self._decoder(codes, self._state, rows=torch.tensor(slots))
        return samples


class MimiEngine:
    """Decodes up to `max_streams` streams. `gain` multiplies the samples: some voices were trained quiet.

    A passage is decoded as if it stood alone; with `shapes` it starts where it can be heard, and does not break off. A
    frame arrives as `frame_units` units. A talker's vocabulary may be larger than a codebook, by marks that a trained
    one never draws within speech: they sound as code 0.
    """

    def __init__(
        self,
        decoder: MimiDecoder,
        *,
        sample_rate: int,
        max_streams: int,
        gain: float = 1.0,
        shapes: bool = False,
        frame_units: int = 1,
    ) -> None:
        self.sample_rate = sample_rate
        self.codebooks = decoder.config.num_quantizers
        self.frame_units = frame_units
        self._codes = decoder.config.codebook_size
        self.frame_samples = decoder.config.frame_samples
        self.pace = Pace()
        self._shapes = shapes
        self._gain = gain
        self._decoding: _Decoding = (
            CapturedDecoder(decoder, slots=max_streams, frames=range(1, MAX_FRAMES + 1))
            if decoder.device.type == "cuda"
            else _PlainDecoder(decoder, max_streams)
        )
        self._free = list(range(max_streams - 1, -1, -1))
        self._frames = 0
        self._steps = 0

    def open(self, request: object) -> CodecStream:
        if not self._free:
            raise StreamSynthError(ErrorCode.OVERLOADED, "every stream of the codec is taken", retry_after_ms=1000)
        slot = self._free.pop()
        self._decoding.reset(slot)
        return CodecStream(self, slot)

    def open_joiner(self) -> Joiner:
        return Joiner(self.sample_rate, shapes=self._shapes)

    def reset(self, stream: CodecStream) -> None:
        """Let its next frames be decoded as the first of a stream."""
        self._decoding.reset(stream.slot)

    def free(self, stream: CodecStream) -> None:
        self._free.append(stream.slot)

    def step(self, streams: Sequence[Stream]) -> StepResult:
        """Decode the neediest stream's frames, and as many of each other stream that has so many."""
        ready = [stream for stream in streams if isinstance(stream, CodecStream)]
        frames = ready[0].ready_frames
        if frames:
            together = [stream for stream in ready if stream.ready_frames >= frames]
            decoded = self._decode(together, frames)
        else:
            together, decoded = ready[:1], np.zeros((1, 0), np.float32)
        emitted = [(stream, stream.emit(row)) for stream, row in zip(together, decoded, strict=True)]
        return StepResult([(stream, emission) for stream, emission in emitted if emission is not None])

    def _decode(self, streams: Sequence[CodecStream], frames: int) -> npt.NDArray[np.float32]:
        codes = torch.from_numpy(np.stack([stream.take(frames) for stream in streams])).transpose(1, 2)
        codes = torch.where(codes < self._codes, codes, 0)
        samples = self._decoding(codes, [stream.slot for stream in streams])
        self._frames += frames * len(streams)
        self._steps += 1
        audio: npt.NDArray[np.float32] = (samples * self._gain).numpy()
        return audio

    def counters(self) -> dict[str, int]:
        return {"free_slots": len(self._free), "frames": self._frames, "steps": self._steps}

    def close(self) -> None:
        pass
