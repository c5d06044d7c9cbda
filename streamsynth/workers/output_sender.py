"""The worker's sending side: what the step loop made, to the server."""

from __future__ import annotations

import queue
import socket
import threading

import msgspec

from streamsynth.engine.stream import Emission
from streamsynth.workers import wire
from streamsynth.workers.shared import MemoryWriter

MAX_UNSENT_OUTPUTS = 64
"""The step loop waits when this many finished outputs have not left the worker yet."""


class OutputSender(threading.Thread):
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
