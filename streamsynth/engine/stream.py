"""What the worker's step loop needs from a model: an engine that opens streams, and streams that step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from streamsynth.errors import StreamSynthError
from streamsynth.graph.chunk import Chunk


class Interrupted(Exception):
    """A step was given up half-way because its request was cancelled."""


@dataclass(frozen=True, slots=True)
class Emission:
    """What one step made: media of shape (units, ...) at `rate` units a second.

    Audio is mono float32 of shape (units,), full scale 1.0, `rate` in Hz; codec frames are integers (units, codebooks).
    `segment` counts the containers that the request's granularity asks for (always 0 under "none"). `segment_text`, the
    words that the segment speaks, is given with the segment's first emission. `segment_final` marks a segment's last
    emission and `final` the stream's; either may carry zero units. `finish_reason` ("stop" or "length") goes with
    `final`. `consumed` counts the input units used up so far, where another stage feeds this one.
    """

    media: npt.NDArray[Any]
    rate: int
    segment: int = 0
    segment_text: str | None = None
    segment_final: bool = False
    final: bool = False
    finish_reason: str = "stop"
    consumed: int = 0


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


class Engine(Protocol):
    """A loaded model. Constructed once in the worker with the stage's options; immutable after that."""

    def open(self, request: Mapping[str, Any]) -> Stream:
        """Start a stream for `SpeechRequest.to_wire()`; raises StreamSynthError if the model cannot serve it."""

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


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a batched step made, stream by stream, in the order it happened; an error ends its stream.

    `worked` is False if the step could do nothing at all, so that the loop may pause.
    """

    made: Sequence[tuple[Stream, Emission | StreamSynthError]]
    worked: bool = True
