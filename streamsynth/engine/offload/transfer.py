"""Copies from host memory to slots: on a CUDA device on a stream of their own, on the CPU plainly.

A *fence* marks what the compute stream has been given so far; a copy into a slot begins after the fence of the slot's
last use. An *arrival* makes the compute stream wait for a copy. On a CUDA device the host waits for neither.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from streamsynth.engine.offload.statistics import OffloadStatistics

Fence: TypeAlias = torch.cuda.Event | None


class Work(Protocol):
    """A collective that has begun."""

    def wait(self) -> Any: ...


class Arrival(Protocol):
    def wait(self, asked: Fence = None) -> None:
        """What the current stream is given next sees the bytes. Raises what the load failed with.

        `asked`: a mark of when the stream began to want them, if that is not now.
        """

    def synchronize(self) -> None:
        """Return when the host memory has been read."""


class Transfer(Protocol):
    device: torch.device

    def fence(self) -> Fence: ...

    def mark(self) -> Fence:
        """A fence that can say when it was passed."""

    def copy(self, host: Tensor, target: Tensor, after: Fence, then: Callable[[], Work] | None = None) -> Arrival:
        """Begin to copy when `after` is past, and then what else has to happen before the bytes are there."""

    def host_waited(self, seconds: float) -> None:
        """The caller's thread stood still for a load; only on the CPU does the model stand still with it."""

    def statistics(self) -> OffloadStatistics:
        """Waits until the device has done what it was given."""

    def reset(self) -> None: ...


def open_transfer(device: torch.device) -> Transfer:
    if device.type != "cuda":
        return HostTransfer(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return CudaTransfer(torch.device("cuda", index))


class HostTransfer:
    """A device without streams: a copy has happened when `copy` returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._done = OffloadStatistics()

    def fence(self) -> Fence:
        return None

    def mark(self) -> Fence:
        return None

    def copy(self, host: Tensor, target: Tensor, after: Fence, then: Callable[[], Work] | None = None) -> Arrival:
        began = time.perf_counter()
        target.copy_(host)
        took_ms = 1000 * (time.perf_counter() - began)
        done = self._done
        self._done = replace(
            done, loads=done.loads + 1, nbytes=done.nbytes + host.nbytes, copy_ms=done.copy_ms + took_ms
        )
        return ARRIVED if then is None else _Following(then())

    def host_waited(self, seconds: float) -> None:
        self._done = replace(self._done, stall_ms=self._done.stall_ms + 1000 * seconds)

    def statistics(self) -> OffloadStatistics:
        return self._done

    def reset(self) -> None:
        self._done = OffloadStatistics()


class _Arrived:
    def wait(self, asked: Fence = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


ARRIVED = _Arrived()


class _Following:
    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self, asked: Fence = None) -> None:
        self._work.wait()

    def synchronize(self) -> None:
        pass


@dataclass(slots=True)
class _Timed:
    """One copy's events. The compute stream passes `asked` when it wants the bytes, and `got` when it has them."""

    began: torch.cuda.Event
    ended: torch.cuda.Event
    nbytes: int
    asked: Fence = None
    got: Fence = None


class CudaTransfer:
    """Copies from pinned memory. No tensor is handed from stream to stream: slots belong to the executor, whose fences
    order what touches them, so nothing here depends on the allocator's `record_stream`."""

    # Events are read, and let go, when so many copies have been timed.
    _KEPT = 512

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._done = OffloadStatistics()
        self._timed: deque[_Timed] = deque()
        # Copies from staging slabs begin on a thread of their own.
        self._counting = threading.Lock()

    def fence(self) -> Fence:
        return self._record(torch.cuda.Event())

    def mark(self) -> Fence:
        return self._record(torch.cuda.Event(enable_timing=True))

    def copy(self, host: Tensor, target: Tensor, after: Fence, then: Callable[[], Work] | None = None) -> Arrival:
        timed = _Timed(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), host.nbytes)
        if after is not None:
            self.stream.wait_event(after)
        with torch.cuda.stream(self.stream):
            timed.began.record(self.stream)
            target.copy_(host, non_blocking=True)
            if then is not None:
                then().wait()
            timed.ended.record(self.stream)
        with self._counting:
            self._timed.append(timed)
            if len(self._timed) > self._KEPT:
                self._count()
        return _CudaArrival(timed, self)

    def host_waited(self, seconds: float) -> None:
        pass

    def statistics(self) -> OffloadStatistics:
        torch.cuda.synchronize(self.device)
        with self._counting:
            self._count()
            return self._done

    def reset(self) -> None:
        self.statistics()
        self._done = OffloadStatistics()

    def _record(self, event: torch.cuda.Event) -> torch.cuda.Event:
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _count(self) -> None:
        """Those that have been waited for, in their order; the others later."""
        while self._timed and (got := self._timed[0].got) is not None and got.query():
            timed, done = self._timed.popleft(), self._done
            assert timed.asked is not None
            self._done = replace(
                done,
                loads=done.loads + 1,
                nbytes=done.nbytes + timed.nbytes,
                copy_ms=done.copy_ms + timed.began.elapsed_time(timed.ended),
                stall_ms=done.stall_ms + timed.asked.elapsed_time(got),
            )


class _CudaArrival:
    def __init__(self, timed: _Timed, transfer: CudaTransfer) -> None:
        self._timed = timed
        self._transfer = transfer

    def wait(self, asked: Fence = None) -> None:
        stream = torch.cuda.current_stream(self._transfer.device)
        self._timed.asked = asked or self._transfer.mark()
        stream.wait_event(self._timed.ended)
        self._timed.got = self._transfer.mark()

    def synchronize(self) -> None:
        self._timed.ended.synchronize()
