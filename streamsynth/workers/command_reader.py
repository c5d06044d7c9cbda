"""The worker's reading thread: commands from the server, for the step loop."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable

from streamsynth.engine.scheduler import Entry
from streamsynth.workers import wire
from streamsynth.workers.shared import MemoryWriter

_RECEIVE_BYTES = 1 << 18


class CommandReader(threading.Thread):
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
