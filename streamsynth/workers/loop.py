"""The worker: one thread steps, one reads commands, one sends what is finished.

The same code runs in a process of its own and, for tests, in a thread.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import msgspec
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
from streamsynth.workers.shared import MemoryWriter

logger = logging.getLogger(__name__)

MAX_UNSENT_OUTPUTS = 64
"""The step loop waits when this many finished outputs have not left the worker yet."""

LIKELY_SHARED = 0.75
"""Of the work for one request, what several in a batch are taken to share until several have been seen: a step reads
all weights for however many. A lower guess would keep the second out for ever where one takes half of the machine."""

_RECEIVE_BYTES = 1 << 18


class _CommandReader(threading.Thread):
    """Reads the socket. A cancel reaches the stream in flight at once; everything else waits for the step boundary."""

    def __init__(self, connection: socket.socket, memory: MemoryWriter, on_end: Callable[[], None]) -> None:
        super().__init__(name="commands", daemon=True)
        self.arrived = threading.Condition()
        self.commands: deque[wire.ToWorker] = deque()
        self.stepping: Entry[wire.Address] | None = None
        self.cancelling: set[wire.Address] = set()
        self._connection = connection
        self._memory = memory
        self._on_end = on_end

    def run(self) -> None:
        splitter = wire.FrameSplitter()
        try:
            while data := self._connection.recv(_RECEIVE_BYTES):
                for body in splitter.feed(data):
                    self._take(wire.decode_to_worker(body))
        except OSError:
            pass  # The server is gone; the end below says so.
        self._memory.close()
        self._on_end()
        with self.arrived:
            self.commands.append(wire.Stop())
            self.arrived.notify()

    def _take(self, command: wire.ToWorker) -> None:
        if isinstance(command, wire.Release):
            self._memory.release(command.offsets)
            return
        if isinstance(command, wire.Cancel):
            self.cancelling.add(command.address)
        with self.arrived:
            self.commands.append(command)
            self.arrived.notify()
        if isinstance(command, wire.Cancel):
            stepping = self.stepping
            if stepping is not None and stepping.key == command.address:
                stepping.cancelled = True
                stepping.stream.interrupt()

    def wait(self, timeout_s: float) -> None:
        """Return when a command is waiting, or after the time."""
        with self.arrived:
            if not self.commands:
                self.arrived.wait(timeout_s)


class _OutputSender(threading.Thread):
    """Sends messages in the order they were made: small ones at once, while nothing is in their way, from the step
    loop's own thread; what must be copied into shared memory, or would block, from this one."""

    def __init__(self, connection: socket.socket, memory: MemoryWriter) -> None:
        super().__init__(name="outputs", daemon=True)
        self._queue: queue.Queue[tuple[wire.ToServer, Emission] | bytes | None] = queue.Queue(MAX_UNSENT_OUTPUTS)
        # Each is written by one thread alone; equal, they say that this thread has nothing to do.
        self._queued = 0
        self._sent = 0
        self._connection = connection
        self._memory = memory

    def put(self, message: wire.ToServer, emission: Emission | None = None) -> None:
        """Send a message; `emission` supplies the media of an Output. Blocks while MAX_UNSENT_OUTPUTS are unsent."""
        if emission is not None and emission.media.nbytes > wire.INLINE_BYTES:
            self._enqueue((message, emission))
            return
        frame = self._frame(message, emission)
        sent = self._try_to_send(frame) if self._queued == self._sent else 0
        if sent < len(frame):
            self._enqueue(frame[sent:])

    def _try_to_send(self, frame: bytes) -> int:
        try:
            return self._connection.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frame)  # The server is gone: the reader ends the worker.

    def _enqueue(self, item: tuple[wire.ToServer, Emission] | bytes) -> None:
        self._queued += 1
        self._queue.put(item)

    def _frame(self, message: wire.ToServer, emission: Emission | None) -> bytes:
        if emission is not None:
            message = msgspec.structs.replace(message, array=self._memory.store(emission.media))
        return wire.encode(message)

    def run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                self._connection.sendall(item if isinstance(item, bytes) else self._frame(*item))
                self._sent += 1
        except OSError:
            while self._queue.get() is not None:
                pass  # The server is gone: let the step loop go on until the reader ends it.

    def finish(self) -> None:
        """Send what is queued, then end the thread."""
        self._queue.put(None)
        self.join()


class StepLoop:
    """Runs an engine until it is told to stop. Everything here happens on the caller's thread."""

    def __init__(
        self, engine: Engine, start: wire.Start, memory: MemoryWriter, reader: _CommandReader, sender: _OutputSender
    ) -> None:
        self._engine = engine
        self._batch_engine = engine if isinstance(engine, BatchEngine) else None
        self._start = start
        self._memory = memory
        self._reader = reader
        self._sender = sender
        self._scheduler: Scheduler[wire.Address] = Scheduler(played=not isinstance(engine, WholeClips))
        self._cost = MediaCost(0.0 if self._batch_engine is None else LIKELY_SHARED)
        for tried in engine.rehearsals if isinstance(engine, Rehearsed) else ():
            self._cost.add(tried.work_s, tried.media_s, tried.sharers)
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


def run_worker(connection: socket.socket, descriptor: int, *, on_server_gone: Callable[[], None]) -> None:
    """Serve one stage over `connection` until Stop or until the server is gone.

    `on_server_gone` is called from the reading thread, and may end the process at once: a step can take long.
    `descriptor` is the shared memory to fill. Owns and closes both.
    """
    first = _first_command(connection)
    if first is None:
        return
    memory = MemoryWriter(descriptor, first.memory_bytes)
    os.close(descriptor)
    reader = _CommandReader(connection, memory, on_server_gone)
    sender = _OutputSender(connection, memory)
    sender.start()
    began = time.monotonic()
    try:
        engine = _load_engine(first)
    except Exception as error:
        logger.error("stage %s did not load", first.stage, exc_info=error)
        message = f"stage {first.stage} did not load: {type(error).__name__}: {error}"[:500]
        sender.put(wire.StartFailed(StreamSynthError(ErrorCode.START_FAILED, message).to_wire()))
        sender.finish()
        connection.close()
        return
    reader.start()
    traits = msgspec.to_builtins(engine.traits) if isinstance(engine, WholeClips) else None
    sender.put(wire.Ready(time.monotonic() - began, traits))
    loop = StepLoop(engine, first, memory, reader, sender)
    try:
        loop.run()
    finally:
        engine.close()
        sender.finish()
        # A close alone would wait for the reading thread to let go of the socket.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def _first_command(connection: socket.socket) -> wire.Start | None:
    """The Start frame, read byte-exact so that nothing behind it is taken; None if the server is gone already."""
    splitter = wire.FrameSplitter()
    wanted = 4
    header = b""
    while len(header) < wanted:
        data = connection.recv(wanted - len(header))
        if not data:
            return None
        header += data
        if len(header) == 4:
            wanted += int.from_bytes(header, "little")
    (body,) = splitter.feed(header)
    command = wire.decode_to_worker(body)
    if not isinstance(command, wire.Start):
        raise ValueError(f"the first frame to a worker is Start, not {type(command).__name__}")
    return command


def _load_engine(start: wire.Start) -> Engine:
    module, _, name = start.engine.partition(":")
    engine: Engine = getattr(importlib.import_module(module), name)(**start.options)
    return engine
