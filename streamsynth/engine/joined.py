"""Two stages in one worker: what the first makes is taken by the second within the same step.

The second runs on a CUDA stream of its own, before whatever else waits for the device: so it does not queue behind the
step that the first has launched ahead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from streamsynth.engine.opening import open_engine
from streamsynth.engine.stream import BatchEngine, Emission, MediaStream, Rehearsed, StepResult, Stream, TextStream
from streamsynth.errors import StreamSynthError
from streamsynth.graph.chunk import Chunk, Unit

Beside = Callable[[], contextlib.AbstractContextManager[Any]]


class JoinedStream:
    """One request in both engines. `spoken`: the first has made all there will be."""

    def __init__(self, engine: JoinedEngine, maker: TextStream, taker: MediaStream) -> None:
        self.maker = maker
        self.taker = taker
        self.spoken = False
        self.finish_reason = "stop"
        self._engine = engine
        self._fed = 0

    def push(self, text: str) -> None:
        self.maker.push(text)

    def finish(self) -> None:
        self.maker.finish()

    def feed(self, made: Emission, unit: Unit) -> None:
        """Pass on what the first has made."""
        units = len(made.media)
        self.taker.feed(Chunk(made.media, self._fed, units, unit, made.rate, made.final, made.marks()))
        self._fed += units
        self.spoken = made.final
        if made.final:
            self.finish_reason = made.finish_reason

    def maker_wake_at(self) -> float | None:
        return None if self.spoken else self.maker.wake_at()

    def wake_at(self) -> float | None:
        wakes = [wake for wake in (self.maker_wake_at(), self.taker.wake_at()) if wake is not None]
        return min(wakes, default=None)

    def step(self) -> Emission | None:
        raise AssertionError("the streams of two stages are stepped together")

    def interrupt(self) -> None:
        self.maker.interrupt()
        self.taker.interrupt()

    def close(self) -> None:
        self._engine.close_streams(self.maker, self.taker)


class JoinedEngine:
    """`maker` and `taker` say what the stages are: `engine`, an import path, and its `options`; the `unit` of what the
    first makes. Both are batch engines; the first reads text."""

    def __init__(self, *, maker: Mapping[str, Any], taker: Mapping[str, Any]) -> None:
        self._maker = _load(maker)
        self._unit = Unit(maker["unit"])
        self._beside = _high_priority() if torch.cuda.is_available() else contextlib.nullcontext
        self.rehearsals = self._maker.rehearsals if isinstance(self._maker, Rehearsed) else ()
        with self._beside():
            self._taker = _load(taker)

    def open(self, request: Mapping[str, Any]) -> JoinedStream:
        with contextlib.ExitStack() as undo:
            maker = cast(TextStream, self._maker.open(request))
            undo.callback(maker.close)
            with self._beside():
                taker = cast(MediaStream, self._taker.open(request))
            undo.pop_all()
        return JoinedStream(self, maker, taker)

    def close_streams(self, maker: TextStream, taker: MediaStream) -> None:
        with contextlib.ExitStack() as both:
            both.enter_context(self._beside())
            both.callback(taker.close)
            both.callback(maker.close)

    def step(self, streams: Sequence[Stream]) -> StepResult:
        joined = [stream for stream in streams if isinstance(stream, JoinedStream)]
        failed, spoke = self._speak(joined)
        heard = self._sound([stream for stream in joined if stream not in failed])
        return StepResult(
            [*failed.items(), *heard.made],
            worked=bool(failed) or spoke.worked or heard.worked,
            unfinished=spoke.unfinished or heard.unfinished,
            shares=_shares(spoke),
        )

    def _speak(self, streams: Sequence[JoinedStream]) -> tuple[dict[Stream, StreamSynthError], StepResult]:
        """A step of the first stage, whose media goes to the second at once; and what it has failed."""
        now = time.monotonic()
        owners: dict[Stream, JoinedStream] = {
            stream.maker: stream for stream in streams if _is_due(stream.maker_wake_at(), now)
        }
        result = self._maker.step(list(owners))
        failed: dict[Stream, StreamSynthError] = {}
        for maker, made in result.made:
            if isinstance(made, StreamSynthError):
                failed[owners[maker]] = made
            else:
                owners[maker].feed(made, self._unit)
        return failed, result

    def _sound(self, streams: Sequence[JoinedStream]) -> StepResult:
        now = time.monotonic()
        owners: dict[Stream, JoinedStream] = {
            stream.taker: stream for stream in streams if _is_due(stream.taker.wake_at(), now)
        }
        if not owners:
            return StepResult([], worked=False)
        with self._beside():
            result = self._taker.step(list(owners))
        return replace(result, made=[(owners[taker], _outward(owners[taker], made)) for taker, made in result.made])

    def counters(self) -> dict[str, int]:
        return {**self._taker.counters(), **self._maker.counters()}

    def close(self) -> None:
        self._maker.close()
        with self._beside():
            self._taker.close()


def _outward(stream: JoinedStream, made: Emission | StreamSynthError) -> Emission | StreamSynthError:
    """What the second stage made, as the only one's: it has used up none of the text, and knows why speech ended."""
    if isinstance(made, StreamSynthError):
        return made
    reason = "length" if stream.finish_reason == "length" else made.finish_reason
    return replace(made, consumed=0, finish_reason=reason)


def _shares(spoke: StepResult) -> list[float]:
    """Of the first stage, whose steps are most of the work: the second may make several of them audible at once."""
    makers = [made for _, made in spoke.made if isinstance(made, Emission) and len(made.media)]
    return [len(made.media) / made.rate for made in makers]


def _is_due(wake: float | None, now: float) -> bool:
    return wake is not None and wake <= now


def _load(stage: Mapping[str, Any]) -> BatchEngine:
    engine = open_engine(stage["engine"], stage["options"])
    if not isinstance(engine, BatchEngine):
        raise TypeError(f"{stage['engine']} steps one request at a time: it cannot share a worker")
    return engine


def _high_priority() -> Beside:
    stream = torch.cuda.Stream(priority=-1)
    return lambda: torch.cuda.stream(stream)
