"""`python -m streamsynth.bench.wire_source --connection FD --memory FD --pipe FD`: the sending end of `bench wire`.

It sends one filled array for each request that it is given, over the worker's wire or over the pipe, and says when the
sending began: `time.monotonic_ns` is one clock for all processes of a machine.
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import struct
import threading
import time

import numpy as np

from streamsynth.workers import wire
from streamsynth.workers.shared import MemoryWriter

MEMORY_BYTES = 64 << 20
BEGAN = struct.Struct("<q")


def filled(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The array of that size that both ends know. Its sum is exact in float32 and float64."""
    return (np.arange(nbytes // 4) % 8).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connection", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--pipe", type=int, required=True)
    arguments = parser.parse_args()
    connection = socket.socket(fileno=arguments.connection)
    memory = MemoryWriter(arguments.memory, MEMORY_BYTES)
    asked: queue.SimpleQueue[wire.ToWorker | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, memory, asked), daemon=True).start()
    address = wire.Address(0, 0, 0)
    source = filled(0)
    while (command := asked.get()) is not None:
        match command:
            case wire.Open(address=address, request={"nbytes": int(nbytes)}):
                source = filled(nbytes)
            case wire.Text(text="wire"):
                _send_by_wire(connection, memory, address, source)
            case wire.Text(text="pipe"):
                _send_by_pipe(arguments.pipe, source)


def _read(connection: socket.socket, memory: MemoryWriter, asked: queue.SimpleQueue[wire.ToWorker | None]) -> None:
    splitter = wire.FrameSplitter()
    while data := connection.recv(1 << 18):
        for body in splitter.feed(data):
            command = wire.decode_to_worker(body)
            if isinstance(command, wire.Release):
                memory.release(command.offsets)
            else:
                asked.put(command)
    asked.put(None)


def _send_by_wire(
    connection: socket.socket,
    memory: MemoryWriter,
    address: wire.Address,
    source: np.ndarray[tuple[int], np.dtype[np.float32]],
) -> None:
    began_ns = time.monotonic_ns()
    output = wire.Output(
        address=address,
        first_unit=0,
        units=len(source),
        rate=24_000,
        array=memory.store(source),
        marks={"began_ns": began_ns},
        final=False,
        consumed=0,
    )
    connection.sendall(wire.encode(output))


def _send_by_pipe(pipe: int, source: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    os.write(pipe, BEGAN.pack(time.monotonic_ns()))
    data = source.data.cast("B")
    while data:
        data = data[os.write(pipe, data) :]


if __name__ == "__main__":
    main()
