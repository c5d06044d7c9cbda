"""The engine of an autoregressive stage: many requests in one batch, each a sequence of passages spoken in turn.

What a passage says, how it is prompted and when it has ended is the model family's; pages, batches and credit are here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamsynth.engine.cost import Rehearsal
from streamsynth.engine.passage import Context, Passage, Reader
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Drawing, FrameGang, StepRunner
from streamsynth.engine.scheduler import RELAXED_LEAD_S
from streamsynth.engine.stream import BatchEngine, Emission, StepResult, Stream
from streamsynth.errors import StreamSynthError

REHEARSED = (1, 4)
"""How many requests are tried together: what a step costs is a line through these."""

REHEARSED_STEPS = 4

IDLE_PAGES_S = 2.0
"""A request that has had no credit for this long gives its pages back and computes them again when it returns."""


class TalkerStream:
    """One request: its passages, and the gang that speaks the one under way.

    `held` is a frame of that gang that was read while the request had no credit for it; `said` is what the next passage
    goes on from.
    """

    def __init__(self, engine: Talker, reader: Reader, drawing: Drawing, frame_limit: int) -> None:
        self.drawing = drawing
        self.gang: FrameGang | None = None
        self.passage: Passage | None = None
        self.held: Tensor | None = None
        self.said: Tensor | None = None
        self.frames_left = frame_limit
        self.frames = 0
        self.segments = 0
        self.segment_open = False
        self.cut = False
        self.stepped_at = 0.0
        self.first_frame_at: float | None = None
        self._engine = engine
        self._reader = reader
        self._ahead: Passage | None = None
        self._refusal: StreamSynthError | None = None

    def push(self, text: str) -> None:
        self._reader.push(text)
        self.look_ahead()

    def finish(self) -> None:
        self._reader.finish()
        self.look_ahead()

    def look_ahead(self) -> None:
        """Have one passage ahead, so that the last is known, and no more: reading a long text takes long."""
        if self._refusal is not None or self._ahead is not None:
            return
        try:
            self._ahead = self._reader.take()
        except StreamSynthError as refusal:
            self._refusal = refusal

    @property
    def done(self) -> bool:
        """Nothing is under way and nothing will come."""
        return self.passage is None and self._ahead is None and self._refusal is None and self._reader.exhausted

    def next_passage(self) -> Passage | None:
        """Begin the next passage, if one is certain. Raises what the reader refused, once it is its turn."""
        self.look_ahead()
        if self._refusal is not None and self._ahead is None:
            raise self._refusal
        self.passage, self._ahead = self._ahead, None
        return self.passage

    def wake_at(self) -> float | None:
        return 0.0 if self.passage or self._ahead or self._refusal or self.done else None

    def step(self) -> Emission | None:
        raise AssertionError("a talker's streams are stepped together")

    def interrupt(self) -> None:
        """A step is short, and shared with other requests: it runs to its end."""

    def close(self) -> None:
        self._engine.forget(self)


class Talker:
    """Steps requests together. `eos` in a frame's first codebook ends its passage.

    A frame leaves as `frame_units` units of its codebooks each, `rate` units a second: for a codec whose frames are no
    whole number a second, tokens are.

    With a `context` the passages of a request go on from one another.

    A request's frames left may be fewer than its passages hold: it then ends with the finish reason "length", and so it
    does when a passage runs to its `max_frames`.
    """

    def __init__(
        self,
        runner: StepRunner,
        planner: Planner,
        *,
        page_size: int,
        rate: int,
        codebooks: int,
        eos: int,
        frame_units: int = 1,
        context: Context | None = None,
    ) -> None:
        self._runner = runner
        self._planner = planner
        self._context = context
        self._page_size = page_size
        self._rate = rate
        self._shape = (frame_units, codebooks // frame_units)
        self._eos = eos
        self._streams: set[TalkerStream] = set()
        self._speakers: dict[FrameGang, TalkerStream] = {}
        self._frames = 0
        self._late_frames = 0
        self._steps = 0

    def add(self, reader: Reader, drawing: Drawing, frame_limit: int) -> TalkerStream:
        stream = TalkerStream(self, reader, drawing, frame_limit)
        self._streams.add(stream)
        return stream

    def forget(self, stream: TalkerStream) -> None:
        """Take a stream's pages back; the integrity of the pool is checked whenever nothing runs."""
        self._end_passage(stream)
        self._streams.discard(stream)
        if not self._streams:
            self._planner.check()

    def counters(self) -> dict[str, int]:
        return {
            "live": len(self._streams),
            "frames": self._frames,
            "late_frames": self._late_frames,
            "steps": self._steps,
            "preemptions": self._planner.preemptions,
            "free_pages": self._planner.free_pages,
        }

    def step(self, streams: Sequence[Stream]) -> StepResult:
        now = time.monotonic()
        asked = set(streams)
        made: dict[Stream, Emission | StreamSynthError] = {}
        gangs = self._gangs([stream for stream in streams if isinstance(stream, TalkerStream)], now, made)
        self._release_idle(now)
        plan = self._planner.plan(gangs)
        worked = bool(plan.spans or made or self._runner.busy)
        frames = self._runner.step(plan, {row: gang for gang in gangs for row in gang.rows})
        for ready in plan.ready:
            self._planner.publish(ready)
        for drawn in frames:
            speaker = self._speakers.get(drawn.gang)
            if speaker is None:
                self._late_frames += 1  # What it belongs to had ended before it was read.
            elif speaker in asked and speaker not in made:
                made[speaker] = self._take(speaker, drawn.frame)
            else:
                speaker.held = drawn.frame
        self._steps += bool(plan.spans)
        return StepResult(list(made.items()), worked=worked)

    def _gangs(
        self, streams: Sequence[TalkerStream], now: float, made: dict[Stream, Emission | StreamSynthError]
    ) -> list[FrameGang]:
        """The gangs that want a further frame; what is to be said of their streams without one goes into `made`."""
        gangs: list[FrameGang] = []
        for stream in streams:
            stream.stepped_at = now
            try:
                gang = self._gang(stream)
            except StreamSynthError as error:
                made[stream] = error
                continue
            if gang is None:
                made[stream] = self._emit(stream, None, segment_final=stream.segment_open, final=True)
            elif stream.held is not None:
                made[stream] = self._take(stream, stream.held)
            elif self._may_launch(stream, gang, now):
                gangs.append(gang)
        return gangs

    def _may_launch(self, stream: TalkerStream, gang: FrameGang, now: float) -> bool:
        """Whether one more frame could still be wanted once those under way have been read.

        Who is far ahead does not launch ahead: a request that comes now would have to wait for that step too.
        """
        assert stream.passage is not None
        under_way = gang.launched - gang.drawn
        if under_way and self._lead_s(stream, now) >= RELAXED_LEAD_S:
            return False
        return gang.launched < stream.passage.max_frames and under_way < stream.frames_left

    def _lead_s(self, stream: TalkerStream, now: float) -> float:
        """What a listener who began with the first frame has in hand."""
        if stream.first_frame_at is None:
            return 0.0
        return stream.frames * self._shape[0] / self._rate - (now - stream.first_frame_at)

    def _gang(self, stream: TalkerStream) -> FrameGang | None:
        """The gang of the passage under way, or of the next; None at the end of the request."""
        if stream.gang is None:
            passage = stream.passage or stream.next_passage()
            if passage is None:
                return None
            prompts = self._context.before(passage, stream.said) if self._context else passage.prompts
            if passage.voice is not None:
                prompts = [torch.cat((passage.voice, prompt)) for prompt in prompts]
            self._planner.check_fits([len(prompt) + passage.max_frames for prompt in prompts])
            stream.gang = FrameGang.of(prompts, stream.drawing, self._page_size, first_frame=stream.frames)
            self._speakers[stream.gang] = stream
        return stream.gang

    def _release_idle(self, now: float) -> None:
        for stream in self._streams:
            if stream.gang is not None and now - stream.stepped_at >= IDLE_PAGES_S and stream.gang.holds_pages:
                self._planner.release(stream.gang)

    def _take(self, stream: TalkerStream, frame: Tensor) -> Emission:
        """Account for a drawn frame: media, or the end of its passage."""
        passage, gang = stream.passage, stream.gang
        assert passage is not None
        assert gang is not None
        stream.held = None
        ended = int(frame[0]) == self._eos
        if not ended:
            if stream.first_frame_at is None:
                stream.first_frame_at = time.monotonic()
            stream.frames += 1
            stream.frames_left -= 1
            self._frames += 1
        limited = stream.frames_left <= 0
        runaway = gang.drawn >= passage.max_frames
        if ended or runaway or gang.drawn > 1:
            stream.look_ahead()  # Not before the first frame has left: reading a passage takes milliseconds.
        if not (ended or limited or runaway):
            return self._emit(stream, frame, passage)
        pause = min(passage.pause, stream.frames_left)
        stream.frames_left -= pause
        # A passage that does not end itself has lost its place: the next one begins afresh.
        said = self._context.of(passage.prompts[0], gang.fed[:-1]) if self._context and ended else None
        self._end_passage(stream)
        stream.said = said
        limited = stream.frames_left <= 0 and not stream.done
        stream.cut |= not ended or limited or pause < passage.pause
        final = limited or stream.done
        return self._emit(
            stream,
            None if ended else frame,
            passage,
            segment_final=passage.ends_segment or final,
            final=final,
            pause=pause,
        )

    def _end_passage(self, stream: TalkerStream) -> None:
        if stream.gang is not None:
            self._planner.release(stream.gang)
            del self._speakers[stream.gang]
        stream.gang = stream.passage = stream.held = None

    def _emit(
        self,
        stream: TalkerStream,
        frame: Tensor | None,
        passage: Passage | None = None,
        *,
        segment_final: bool = False,
        final: bool = False,
        pause: int = 0,
    ) -> Emission:
        """A frame, or an end without one. The first of a segment's emissions carries its text."""
        first = passage is not None and passage.segment == stream.segments
        if first:
            stream.segments += 1
        stream.segment_open = (stream.segment_open or first) and not segment_final
        return Emission(
            np.empty((0, self._shape[1]), np.int16) if frame is None else _media(frame, self._shape),
            self._rate,
            segment=max(0, stream.segments - 1) if passage is None else passage.segment,
            segment_text=passage.text if passage is not None and first else None,
            segment_final=segment_final,
            final=final,
            pause=pause * self._shape[0],
            finish_reason="length" if stream.cut else "stop",
        )


def _media(frame: Tensor, shape: tuple[int, int]) -> npt.NDArray[np.int16]:
    return frame.numpy().astype(np.int16).reshape(shape)


def rehearse(engine: BatchEngine, open_stream: Callable[[], TalkerStream], *, frame_s: float) -> list[Rehearsal]:
    """Speak a few frames, alone and together, so that the first request finds everything loaded; and say what it took.

    `open_stream` opens a request with its text.
    """
    tried = []
    for count in REHEARSED:
        streams = [open_stream() for _ in range(count)]
        for _ in range(2):
            engine.step(streams)  # The prompts, and what is launched ahead.
        began, frames = time.perf_counter(), 0
        for _ in range(REHEARSED_STEPS):
            made = [emission for _, emission in engine.step(streams).made if isinstance(emission, Emission)]
            frames += sum(emission.media.size > 0 for emission in made)
        tried.append(Rehearsal(count, time.perf_counter() - began, frames * frame_s))
        for stream in streams:
            stream.close()
    return tried
