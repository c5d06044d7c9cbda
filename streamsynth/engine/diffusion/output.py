"""The way of finished pictures to the host: a stream and a thread of their own, so that the device goes on at once.

Computing is done when a clip's last kernel is launched; its output is ready when this thread says so. What fails in
between fails that clip alone.
"""

from __future__ import annotations

import queue
import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class HostCopy:
    """Pictures on their way. Once `done`: `pictures` are uint8 (n, height, width, 3), or `error` says why not."""

    def __init__(self, source: Tensor) -> None:
        self.pictures: npt.NDArray[np.uint8] | None = None
        self.error: Exception | None = None
        self._source: Tensor | None = source
        self._computed = torch.cuda.Event() if source.is_cuda else None
        if self._computed is not None:
            self._computed.record(torch.cuda.current_stream(source.device))
        self._done = threading.Event()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()

    def run(self, stream: torch.cuda.Stream | None) -> None:
        """The copy itself, on the copying thread."""
        source, self._source = self._source, None
        assert source is not None
        try:
            self.pictures = _to_host(source, self._computed, stream).numpy()
        except Exception as error:  # noqa: BLE001 - becomes the terminal message of its request
            self.error = error
        self._done.set()


def _to_host(source: Tensor, computed: torch.cuda.Event | None, stream: torch.cuda.Stream | None) -> Tensor:
    if computed is None or stream is None:
        return source.contiguous()
    with torch.cuda.stream(stream):
        stream.wait_event(computed)
        # The allocator must not hand this memory out while the copy reads it: it was made on another stream.
        source.record_stream(stream)
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        target.copy_(source, non_blocking=True)
    stream.synchronize()
    return target


class OutputThread:
    """Copies one after the other. `begin` is called from the step loop's thread, behind the launch of what it takes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._queue: queue.SimpleQueue[HostCopy | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
        self._thread.start()

    def begin(self, pictures: Tensor) -> HostCopy:
        copy = HostCopy(pictures)
        self._queue.put(copy)
        return copy

    def close(self) -> None:
        """Return when what was begun is done."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (copy := self._queue.get()) is not None:
            copy.run(self._stream)
