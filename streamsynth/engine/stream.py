"""What the worker's step loop needs from a model: an engine that opens streams, and streams that step."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy.typing as npt

from streamsynth.engine.cost import Rehearsal
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Chunk
from streamsynth.interactions.messages import ChunkReport, Interaction, Notice
from streamsynth.video import VideoTraits

logger = logging.getLogger(__name__)


class Interrupted(Exception):
    """A step was given up half-way because its request was cancelled."""


def as_error(error: Exception) -> StreamSynthError:
    """The terminal error of the requests that a failed step belongs to. What is not one of ours is logged."""
    if isinstance(error, StreamSynthError):
        return error
    logger.error("the engine failed", exc_info=error)
    return StreamSynthError(ErrorCode.ENGINE_FAILED, f"the engine failed with {type(error).__name__}: {error}"[:500])


@dataclass(frozen=True, slots=True)
class Emission:
    """What one step made: media of shape (units, ...) at `rate` units a second.

    Audio is mono float32 of shape (units,), full scale 1.0, `rate` in Hz; codec frames are integers (units, codebooks).
    Pictures are uint8 RGB (units, height, width, 3), `rate` the model's fps; they come with a `report`.
    `segment` counts the containers that the request's granularity asks for (always 0 under "none"). `segment_text`, the
    words that the segment speaks, is given with the segment's first emission. `segment_final` marks a segment's last
    emission and `final` the stream's; either may carry zero units. `finish_reason` ("stop" or "length") goes with
    `final`. `consumed` counts the input units used up so far, where another stage feeds this one. `pause` asks the
    stage that this one feeds for so many units of silence behind the media. `notices` leave the worker at once, before
    and independently of the media: an emission of no media may carry nothing else.
    """

    media: npt.NDArray[Any]
    rate: int
    segment: int = 0
    segment_text: str | None = None
    segment_final: bool = False
    final: bool = False
    finish_reason: str = "stop"
    consumed: int = 0
    pause: int = 0
    report: ChunkReport | None = None
    notices: tuple[Notice, ...] = ()

    def marks(self) -> dict[str, Any]:
        """What a chunk's `marks` say of it on the wire."""
        if self.report is not None:
            return {"report": msgspec.to_builtins(self.report)}
        marks: dict[str, Any] = {"segment": self.segment}
        if self.segment_text is not None:
            marks["segment_text"] = self.segment_text
        if self.segment_final:
            marks["segment_final"] = True
        if self.pause:
            marks["pause"] = self.pause
        return marks


class Stream(Protocol):
    """One request inside a worker. All methods but `interrupt` are called from the step loop's thread."""

    def wake_at(self) -> float | None:
        """When `step` can do something: a `time.monotonic()` value (past: at once); None while input is missing."""

    def step(self) -> Emission | None:
        """Do one bounded piece of work. None: nothing to send yet. Raises StreamSynthError to fail the request.

        Is not called again after an emission that is `final`.
        """

    def interrupt(self) -> None:
        """From another thread, while `step` runs: make it raise Interrupted soon. May come too late or too early."""

    def close(self) -> None:
        """Give everything back; called exactly once, however the request ended."""


class TextStream(Stream, Protocol):
    """A request of a stage that reads text."""

    def push(self, text: str) -> None:
        """Append text, byte-exact."""

    def finish(self) -> None:
        """No more text will come."""


class MediaStream(Stream, Protocol):
    """A request of a stage that reads what another stage makes."""

    def feed(self, chunk: Chunk) -> None:
        """Take the next chunk; nothing comes after one that is `final`."""


class VideoStream(Stream, Protocol):
    """A video that is steered while it runs: the request of a stage of kind `diffusion` that makes pictures.

    Opened with `VideoRequest.to_wire()`; runs by itself from then on, `wake_at` says when the next chunk is wanted.
    A chunk of the model (counted from 0) is begun at a *boundary*, where the stream calls `Steering.next_chunk` once;
    nothing that arrives later affects that chunk. Its pictures are handed out by one or more emissions as soon as they
    are decoded, each with the chunk's `report`, contiguous over all chunks; the plan's `notices` go with the first
    emission that follows the boundary, best one of no pictures before the chunk's work begins. A step that only moved
    a chunk forward (one denoise step, say) is such an emission too: `None` says that the step did nothing.

    With `num_frames` n, exactly n pictures come in all: the last chunk is cut after its decode, and is `final` with
    `finish_reason` "length". The pages of keys and values are committed after the chunk was emitted.
    """

    def interact(self, interaction: Interaction) -> tuple[Notice, ...]:
        """Take a steer, between steps; cheap, since many may come. Normally `Steering.interact`.

        What it returns leaves the worker at once. Raises StreamSynthError if the model cannot serve it, or not now: the
        loop reports that as `Refused` for this interaction, and the stream goes on. Any other exception ends it.
        """

    def finish(self) -> None:
        """Begin no further chunk. The one in the making is completed or dropped, then a `final` emission follows, empty
        perhaps, "stop", with the notices of `Steering.stop` and, if it is empty, `ChunkReport(Steering.chunk)`."""


class Engine(Protocol):
    """A loaded model. Constructed once in the worker with the stage's options; immutable after that."""

    def open(self, request: Mapping[str, Any]) -> Stream:
        """Start a stream for `SpeechRequest.to_wire()`, or `VideoRequest.to_wire()` where the pipeline makes video;
        raises StreamSynthError if the model cannot serve it. Some requests are only asked about: their stream is closed
        without a step."""

    def counters(self) -> dict[str, int]:
        """Counters of the engine's own, sent with each heartbeat."""

    def close(self) -> None: ...


@runtime_checkable
class BatchEngine(Engine, Protocol):
    """An engine that steps several streams at once. Its streams' own `step` is never called."""

    def step(self, streams: Sequence[Stream]) -> StepResult:
        """One step over as many of `streams` as fit; they can all make something, and come neediest first.

        A stream of this engine that is not among them is out of credit or waits for input.
        """


@runtime_checkable
class Rehearsed(Protocol):
    """An engine that has timed steps of its own, so that what it costs is known before the first request."""

    rehearsals: Sequence[Rehearsal]


@runtime_checkable
class WholeClips(Protocol):
    """An engine whose media nobody plays while it is made: its requests are stepped in order of arrival, and none of
    them can be late. What `traits` says, of the very model that was loaded, replaces the pipeline's declaration."""

    whole_clips: bool
    traits: VideoTraits


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a batched step made, stream by stream, in the order it happened; an error ends its stream.

    `worked` is False if the step could do nothing at all, so that the loop may pause. `unfinished` asks for a further
    step even if no stream does: something is left to do that nobody waits for yet. `shares`: seconds of media by which
    each request was brought nearer, where they are not what was made.
    """

    made: Sequence[tuple[Stream, Emission | StreamSynthError]]
    worked: bool = True
    unfinished: bool = False
    shares: Sequence[float] | None = None
