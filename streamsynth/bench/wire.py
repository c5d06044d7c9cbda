"""`bench wire`: the time from a filled array in one process to its sum in another, one way and one at a time.

Three ways in the same run, in turns of a few transfers: whatever disturbs the machine disturbs all, and no way finds
the caches full of another's bytes each time. `pipe` is a plain OS pipe into a buffer that is used again; `wire` the
frames and shared memory between workers and server, summed where it lies; `server` the same through the server's own
WorkerConnection on an event loop, which copies the array out before it hands it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamsynth.bench.report import Panel, Report, Row
from streamsynth.bench.statistics import quantile
from streamsynth.bench.wire_source import BEGAN, MEMORY_BYTES, filled
from streamsynth.environment import child_environment
from streamsynth.graph.chunk import Chunk, Unit
from streamsynth.graph.edge import open_edge
from streamsynth.workers import wire
from streamsynth.workers.connection import WorkerConnection
from streamsynth.workers.shared import MemoryReader, create_memory

SIZES = (1_600, 16_000, 160_000, 1_600_000, 16_000_000)
WARM_UP = 10
TURN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class WireLoad:
    """`seconds` for each size and way; at least `least` transfers."""

    sizes: Sequence[int] = SIZES
    seconds: float = 1.0
    least: int = 30


def bench_wire(load: WireLoad) -> Report:
    rows = [_measure(nbytes, load) for nbytes in load.sizes]
    x = [float(nbytes) for nbytes in load.sizes]
    lines = {way: [float(str(row[f"{way} p50 ms"])) for row in rows] for way in ("pipe", "wire", "server")}
    panel = Panel("one way, array to sum", "bytes", "ms (p50)", x, lines, log=True)
    return Report("wire", rows, [panel], settings={"seconds": load.seconds})


def _measure(nbytes: int, load: WireLoad) -> Row:
    with _source() as (blocking, pipe), _source() as (looping, _):
        direct = _Direct(blocking, pipe, nbytes)
        with asyncio.Runner() as runner:
            server = _Server(looping, nbytes)
            runner.run(server.open())
            ways = {
                "pipe": direct.by_pipe,
                "wire": direct.by_wire,
                "server": lambda: runner.run(server.receive()),
            }
            taken = _take_turns(ways, load)
            runner.run(server.close())
    row: dict[str, float | int | str | None] = {"bytes": nbytes, "transfers": len(taken["wire"])}
    for way, times_ns in taken.items():
        p50, p99 = (quantile(times_ns, share) / 1e6 for share in (0.5, 0.99))
        row |= {f"{way} p50 ms": p50, f"{way} p99 ms": p99, f"{way} GB/s": nbytes / p50 / 1e6}
    pipe_p50 = quantile(taken["pipe"], 0.5)
    return row | {f"{way} / pipe": quantile(taken[way], 0.5) / pipe_p50 for way in ("wire", "server")}


def _take_turns(ways: dict[str, Callable[[], int]], load: WireLoad) -> dict[str, list[int]]:
    taken: dict[str, list[int]] = {way: [] for way in ways}
    for transfer in ways.values():
        for _ in range(WARM_UP):
            transfer()
    end_s = time.monotonic() + load.seconds * len(ways)
    while time.monotonic() < end_s or len(taken["wire"]) < load.least:
        for way, transfer in ways.items():
            taken[way].extend(transfer() for _ in range(TURN))
    return taken


@dataclass(frozen=True, slots=True)
class _Source:
    """A sending process, seen from here."""

    connection: socket.socket
    memory: MemoryReader


@contextlib.contextmanager
def _source() -> Iterator[tuple[_Source, int]]:
    """The source, and the reading end of its pipe. It ends with the context."""
    ours, theirs = socket.socketpair()
    memory = create_memory(MEMORY_BYTES)
    reading, writing = os.pipe()
    names = ("--connection", str(theirs.fileno()), "--memory", str(memory), "--pipe", str(writing))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "streamsynth.bench.wire_source", *names],
        pass_fds=(theirs.fileno(), memory, writing),
        env=child_environment(),
    )
    theirs.close()
    os.close(writing)
    try:
        yield _Source(ours, MemoryReader(memory, MEMORY_BYTES)), reading
    finally:
        os.close(reading)
        os.close(memory)
        with contextlib.suppress(OSError):  # closed by the loop that it was given to
            ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        process.wait(10)


class _Direct:
    """Blocking reads on this thread."""

    def __init__(self, source: _Source, pipe: int, nbytes: int) -> None:
        self._source = source
        self._pipe = pipe
        self._buffer = bytearray(nbytes)
        self._expected = float(filled(nbytes).sum())
        self._splitter = wire.FrameSplitter()
        self._address = wire.Address(0, 0, 0)
        self._send(wire.Open(self._address, {"nbytes": nbytes}, 0))

    def by_wire(self) -> int:
        self._send(wire.Text(self._address, "wire"))
        message = self._receive()
        total = float(self._source.memory.view(message.array).sum())
        ended_ns = time.monotonic_ns()
        if message.array.offset is not None:
            self._send(wire.Release((message.array.offset,)))
        _check(total, self._expected)
        return ended_ns - int(message.marks["began_ns"])

    def by_pipe(self) -> int:
        self._send(wire.Text(self._address, "pipe"))
        (began_ns,) = BEGAN.unpack(os.read(self._pipe, BEGAN.size))
        view, filled_bytes = memoryview(self._buffer), 0
        while filled_bytes < len(view):
            filled_bytes += os.readv(self._pipe, [view[filled_bytes:]])
        total = float(np.frombuffer(self._buffer, np.float32).sum())
        ended_ns = time.monotonic_ns()
        _check(total, self._expected)
        return ended_ns - int(began_ns)

    def _send(self, message: wire.ToWorker) -> None:
        self._source.connection.sendall(wire.encode(message))

    def _receive(self) -> wire.Output:
        while True:
            data = self._source.connection.recv(1 << 18)
            if not data:
                raise ConnectionError("the source of the wire bench has ended")
            for body in list(self._splitter.feed(data)):
                message = wire.decode_to_server(body)
                assert isinstance(message, wire.Output)
                return message


class _Server:
    """As the server receives: a protocol on the loop, an edge, a coroutine behind it."""

    def __init__(self, source: _Source, nbytes: int) -> None:
        self._source = source
        self._nbytes = nbytes
        self._expected = float(filled(nbytes).sum())

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, self._connection = await loop.create_connection(
            lambda: WorkerConnection(self._source.memory, Unit.SAMPLE, on_beat=lambda _: None, on_lost=lambda: None),
            sock=self._source.connection,
        )
        send, self._received = open_edge(1 << 40, cost=_units)
        self._request = self._connection.open(0, 0, {"nbytes": self._nbytes}, send)

    async def receive(self) -> int:
        self._request.push("wire")
        chunk = await self._received.receive()
        total = float(chunk.array.sum())
        ended_ns = time.monotonic_ns()
        _check(total, self._expected)
        return ended_ns - int(chunk.marks["began_ns"])

    async def close(self) -> None:
        self._connection.close()
        await asyncio.sleep(0)


def _units(chunk: Chunk) -> int:
    return chunk.units


def _check(total: float, expected: float) -> None:
    if total != expected:
        raise ValueError(f"the array that came sums to {total}, the one that was sent to {expected}")
