"""How far the step loop may run ahead of the device, and what comes back from there."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from streamsynth.engine.rollout.chunk import Pass, PassKind

Owner = TypeVar("Owner")

AHEAD = 1
"""Passes that may have been launched beside the one in flight: a cancelled video costs no more than these."""


@dataclass(frozen=True, slots=True)
class Landed(Generic[Owner]):
    """A pass that is over, and its pictures in the host's memory."""

    owner: Owner
    pictures: Sequence[Tensor] | None


class Mark(Protocol):
    """A point in the device's work."""

    def reached(self) -> bool: ...

    def wait(self) -> None: ...

    def ms_since(self, other: Mark) -> float:
        """Both are reached."""


class Launches(Generic[Owner]):
    """Passes on CUDA return before they are done: without this a whole chunk would be launched at once, and what
    follows a decode only once its pictures were seen. Pictures are fetched on a stream of their own: the next pass
    runs meanwhile.

    `spent_us` is the device's time by kind of pass, of those that are over; `passes` how many those are.
    """

    def __init__(self, device: torch.device, mark: Callable[[], Mark] | None = None) -> None:
        self.spent_us: Counter[PassKind] = Counter()
        self.passes: Counter[PassKind] = Counter()
        self._mark = mark or (_DeviceMark if device.type == "cuda" else _HostMark)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._flights: deque[_Flight[Owner]] = deque()

    @property
    def brings_pictures(self) -> bool:
        """Whether anything under way does: nobody waits for the rest."""
        return any(flight.pictures is not None for flight in self._flights)

    def launch(self, owner: Owner, passes: Iterator[Pass]) -> PassKind | None:
        """Launch the next of `passes`, and fetch what pictures it makes; None if there is none."""
        began = self._mark()
        done = next(passes, None)
        if done is None:
            return None
        ended = ready = self._mark()
        pictures = done.pictures
        if pictures is not None and self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._copies):
                pictures = [_fetched(each) for each in pictures]
                ready = self._mark()
        self._flights.append(_Flight(owner, done, began, ended, ready, pictures))
        return done.kind

    def landed(self, *, idle: bool) -> Iterator[Landed[Owner]]:
        """The passes that are over, in their order. Waits while more than `AHEAD` are queued behind the one in flight,
        and, where the host is `idle`, for pictures."""
        while self._flights and (
            len(self._flights) > 1 + AHEAD or (idle and self.brings_pictures) or self._flights[0].ready.reached()
        ):
            flight = self._land()
            yield Landed(flight.owner, flight.pictures)

    def tally(self) -> None:
        """Count what is over and brings nobody anything."""
        while self._flights and self._flights[0].pictures is None and self._flights[0].ready.reached():
            self._land()

    def wait(self) -> None:
        """Until the device is done; pictures that were on their way are dropped."""
        while self._flights:
            self._land()

    def _land(self) -> _Flight[Owner]:
        flight = self._flights.popleft()
        flight.ready.wait()
        self.spent_us[flight.done.kind] += round(1000 * flight.ended.ms_since(flight.began))
        self.passes[flight.done.kind] += 1
        return flight


@dataclass(frozen=True, slots=True)
class _Flight(Generic[Owner]):
    """`done` holds the device's pictures until they are fetched. `ready` is when these are in `pictures`."""

    owner: Owner
    done: Pass
    began: Mark
    ended: Mark
    ready: Mark
    pictures: Sequence[Tensor] | None


def _fetched(picture: Tensor) -> Tensor:
    """Filled once the current stream has come so far. The allocator of pinned memory keeps it for that long."""
    return torch.empty(picture.shape, dtype=picture.dtype, pin_memory=True).copy_(picture, non_blocking=True)


class _HostMark:
    """Where the device is the host, work is done when it returns."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def reached(self) -> bool:
        return True

    def wait(self) -> None: ...

    def ms_since(self, other: Mark) -> float:
        assert isinstance(other, _HostMark)
        return 1000 * (self._at - other._at)


class _DeviceMark:
    """On the stream that is current when it is made."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def reached(self) -> bool:
        return self._event.query()

    def wait(self) -> None:
        self._event.synchronize()

    def ms_since(self, other: Mark) -> float:
        assert isinstance(other, _DeviceMark)
        return other._event.elapsed_time(self._event)
