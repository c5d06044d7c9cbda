"""The worker's step loop: which request goes next, what it made, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np

from streamsynth.engine.cost import MediaCost
from streamsynth.engine.scheduler import Entry, Scheduler
from streamsynth.engine.stream import (
    BatchEngine,
    Emission,
    Engine,
    Interrupted,
    MediaStream,
    Rehearsed,
    TextStream,
    VideoStream,
    WholeClips,
    as_error,
)
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Chunk, Unit
from streamsynth.interactions.messages import Notice, Refused
from streamsynth.workers import wire
from streamsynth.workers.command_reader import CommandReader
from streamsynth.workers.output_sender import OutputSender
from streamsynth.workers.shared import MemoryWriter

LIKELY_SHARED = 0.75
"""Of the work for one request, what several in a batch are taken to share until several have been seen: a step reads
all weights for however many. A lower guess would keep the second out for ever where one takes half of the machine."""


class StepLoop:
    """Runs an engine until it is told to stop. Everything here happens on the caller's thread."""

    def __init__(
        self, engine: Engine, start: wire.Start, memory: MemoryWriter, reader: CommandReader, sender: OutputSender
    ) -> None:
        self._engine = engine
        self._batch_engine = engine if isinstance(engine, BatchEngine) else None
        self._start = start
        self._memory = memory
        self._reader = reader
        self._sender = sender
        self._scheduler: Scheduler[wire.Address] = Scheduler(played=not isinstance(engine, WholeClips))
        rehearsals = engine.rehearsals if isinstance(engine, Rehearsed) else ()
        self._cost = MediaCost(0.0 if self._batch_engine is None else LIKELY_SHARED, rehearsals)
        self._steps = 0
        self._steps_after_cancel = 0
        self._next_beat = 0.0
        self._unfinished = False
        self._stopping = False

    def run(self) -> None:
        while True:
            self._apply_commands()
            if self._stopping:
                break
            now = time.monotonic()
            if now >= self._next_beat:
                self._beat(now)
            runnable, next_wake = self._scheduler.runnable(now)
            if runnable and self._batch_engine is not None:
                self._step_batch(self._batch_engine, runnable)
            elif runnable:
                self._step(runnable[0])
            elif self._batch_engine is not None and self._unfinished:
                self._step_batch(self._batch_engine, ())
            else:
                wake = self._next_beat if next_wake is None else min(next_wake, self._next_beat)
                self._reader.wait(max(0.0, wake - now))
        for entry in list(self._scheduler.entries.values()):
            self._end(entry, "failed", StreamSynthError(ErrorCode.SHUTTING_DOWN, "the worker was told to stop"))

    # Commands

    def _apply_commands(self) -> None:
        commands = self._reader.commands
        while commands:
            command = commands.popleft()
            match command:
                case wire.Open():
                    self._open(command)
                case wire.Check():
                    self._check(command)
                case wire.Stop():
                    self._stopping = True
                case wire.Text() | wire.Feed() | wire.Interact() | wire.Finish() | wire.Grant() | wire.Cancel():
                    # A command for a request that has ended crossed its Ended on the way.
                    entry = self._scheduler.entries.get(command.address)
                    if entry is not None:
                        self._apply(entry, command)
                    if isinstance(command, wire.Cancel):
                        self._reader.cancelling.discard(command.address)

    def _open(self, command: wire.Open) -> None:
        try:
            stream = self._engine.open(command.request)
        except Exception as error:  # noqa: BLE001 - becomes the request's terminal message
            self._sender.put(wire.Ended(command.address, "failed", as_error(error).to_wire(), 0))
            return
        self._scheduler.add(Entry(command.address, stream, command.granted))

    def _check(self, command: wire.Check) -> None:
        error: StreamSynthError | None = None
        try:
            self._engine.open(command.request).close()
        except Exception as refusal:  # noqa: BLE001 - is the answer
            error = as_error(refusal)
        self._sender.put(wire.Ended(command.address, "checked", error.to_wire() if error else None, 0))

    def _apply(self, entry: Entry[wire.Address], command: _ForRequest) -> None:
        try:
            match command:
                # What a stage reads is what its pipeline declares: text or media, never both.
                case wire.Text():
                    cast(TextStream, entry.stream).push(command.text)
                case wire.Finish():
                    cast("TextStream | VideoStream", entry.stream).finish()
                case wire.Interact():
                    self._interact(entry, command)
                case wire.Feed():
                    cast(MediaStream, entry.stream).feed(_chunk(command))
                case wire.Grant():
                    entry.granted = max(entry.granted, command.granted)
                case wire.Cancel():
                    self._end(entry, "cancelled")
        except Exception as error:  # noqa: BLE001 - becomes the request's terminal message
            self._end(entry, "failed", as_error(error))

    def _interact(self, entry: Entry[wire.Address], command: wire.Interact) -> None:
        """An interaction that is refused ends alone: the video goes on."""
        notices: tuple[Notice, ...]
        try:
            notices = cast(VideoStream, entry.stream).interact(command.interaction)
        except StreamSynthError as error:
            notices = (Refused(command.interaction.event_id, error.to_wire()),)
        self._notice(entry, notices)

    def _notice(self, entry: Entry[wire.Address], notices: tuple[Notice, ...]) -> None:
        if notices:
            self._sender.put(wire.Noticed(entry.key, notices))

    # Steps

    def _step(self, entry: Entry[wire.Address]) -> None:
        self._steps += 1
        self._steps_after_cancel += entry.key in self._reader.cancelling
        entry.steps += 1
        self._reader.stepping = entry
        began = time.monotonic()
        try:
            emission = entry.stream.step()
        except Interrupted:
            emission = None
        except Exception as error:  # noqa: BLE001 - becomes the request's terminal message
            self._reader.stepping = None
            self._end(entry, "failed", as_error(error))
            return
        self._reader.stepping = None
        now = time.monotonic()
        if entry.cancelled:
            return  # The Cancel itself is the next command; what was made meanwhile is dropped.
        if emission is None:
            entry.made_nothing(now)
            return
        self._account(now - began, _shares([emission]))
        self._emit(entry, emission, now)

    def _step_batch(self, engine: BatchEngine, runnable: Sequence[Entry[wire.Address]]) -> None:
        self._steps += 1
        entries = {id(entry.stream): entry for entry in runnable}
        self._steps_after_cancel += any(entry.key in self._reader.cancelling for entry in runnable)
        began = time.monotonic()
        try:
            result = engine.step([entry.stream for entry in runnable])
        except Exception as error:  # noqa: BLE001 - becomes the terminal message of every request in the batch
            self._unfinished = False
            for entry in runnable:
                self._end(entry, "failed", as_error(error))
            return
        self._unfinished = result.unfinished
        now = time.monotonic()
        emissions = [made for _, made in result.made if isinstance(made, Emission)]
        self._account(now - began, _shares(emissions) if result.shares is None else result.shares)
        for stream, made in result.made:
            entry = entries[id(stream)]
            entry.steps += 1
            if isinstance(made, StreamSynthError):
                self._end(entry, "failed", made)
            elif entry.key not in self._reader.cancelling:
                self._emit(entry, made, now)
        served = {id(stream) for stream, _ in result.made}
        for entry in runnable:
            if not result.worked:
                entry.made_nothing(now)
            elif id(entry.stream) not in served:
                entry.left_out(now)

    def _account(self, work_s: float, shares: Sequence[float]) -> None:
        """What a step cost that made these seconds of media."""
        if shares and self._cost.add(work_s, sum(shares), len(shares)):
            self._next_beat = 0.0  # Whoever admits requests has to know before many more come.

    def _emit(self, entry: Entry[wire.Address], emission: Emission, now: float) -> None:
        self._notice(entry, emission.notices)
        units = len(emission.media)
        if emission.report is not None and not units and not emission.final:
            entry.worked(now)
            return
        output = wire.Output(
            entry.key,
            first_unit=entry.produced,
            units=units,
            rate=emission.rate,
            array=_NO_ARRAY,
            marks=emission.marks(),
            final=emission.final,
            consumed=emission.consumed,
        )
        entry.made(units, emission.rate, now)
        self._sender.put(output, emission)
        if emission.final:
            self._end(entry, emission.finish_reason)

    def _end(self, entry: Entry[wire.Address], reason: str, error: StreamSynthError | None = None) -> None:
        """The one way out of the worker for a request."""
        self._scheduler.remove(entry.key)
        try:
            entry.stream.close()
        except Exception as closing:  # noqa: BLE001 - becomes the request's terminal message
            error = error or as_error(closing)
        self._sender.put(wire.Ended(entry.key, reason, error.to_wire() if error else None, entry.steps))

    # Liveness

    def _beat(self, now: float) -> None:
        self._next_beat = now + self._start.heartbeat_s
        for entry in self._scheduler.stalled(now, self._start.stall_timeout_s):
            message = f"the request made nothing for {self._start.stall_timeout_s:g} s while it could have"
            self._end(entry, "failed", StreamSynthError(ErrorCode.STALLED_ENGINE, message))
        cost = self._cost.look()
        self._sender.put(
            wire.Beat(
                steps=self._steps,
                live=len(self._scheduler.entries),
                steps_after_cancel=self._steps_after_cancel,
                demand=self._scheduler.demand(now),
                cost_each=cost.each,
                cost_shared=cost.shared,
                behind_s=self._scheduler.behind_s(now),
                stuck_s=self._scheduler.stuck_s(now),
                memory_in_use=self._memory.in_use,
                counters=self._engine.counters(),
            )
        )


def _shares(emissions: Sequence[Emission]) -> list[float]:
    """An emission of nothing at all is none of its step's makers'."""
    makers = [emission for emission in emissions if len(emission.media) or emission.report is not None]
    return [len(emission.media) / emission.rate for emission in makers]


_ForRequest: TypeAlias = wire.Text | wire.Feed | wire.Interact | wire.Finish | wire.Grant | wire.Cancel


def _chunk(fed: wire.Feed) -> Chunk:
    array = np.frombuffer(fed.array.inline or b"", fed.array.dtype).reshape(fed.array.shape)
    return Chunk(array, fed.first_unit, fed.units, Unit(fed.unit), fed.rate, fed.final, fed.marks)


_NO_ARRAY = wire.Array("<f4", (0,), inline=b"")
