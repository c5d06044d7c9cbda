"""Which block is in which slot: fetched ahead in the order of the pass, waited for, used, and let go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from streamsynth.engine.offload.host import HostBlocks
from streamsynth.engine.offload.order import PassOrder
from streamsynth.engine.offload.slab import slab_memory
from streamsynth.engine.offload.slots import Slot, SlotState
from streamsynth.engine.offload.statistics import OffloadStatistics
from streamsynth.engine.offload.transfer import ARRIVED, Arrival, Fence, Transfer
from streamsynth.errors import ErrorCode, StreamSynthError


@dataclass(slots=True)
class _Room:
    """A slot with its memory on the device; `released` is past when the block before has run."""

    slot: Slot
    memory: Tensor
    released: Fence
    arrival: Arrival = ARRIVED


class SlotExecutor:
    """Blocks by number; those below `resident` are on the device anyway and only mark the order: `host` begins with the
    first that is not. One thread calls it.

    With `prefetch` n there are n + 1 slots: one in use and n on their way, across the end of a pass too.
    Whatever raises, in a load or in a block, no slot stays in use, and the next pass may begin.
    """

    def __init__(
        self, host: HostBlocks, transfer: Transfer, order: PassOrder, *, slab_bytes: int, resident: int, prefetch: int
    ) -> None:
        self._host = host
        self._transfer = transfer
        self._order = order
        self._resident = resident
        self._prefetch = prefetch
        streamed = max(len(order.names) - resident, 0)
        self._rooms = [
            _Room(Slot(index), slab_memory(slab_bytes, transfer.device), transfer.fence())
            for index in range(min(prefetch + 1, streamed))
        ]
        self._active: int | None = None
        self._entered = 0
        self._on_demand = self._discarded = 0

    @property
    def memories(self) -> Sequence[Tensor]:
        """By slot."""
        return [room.memory for room in self._rooms]

    @property
    def states(self) -> Sequence[SlotState]:
        """By slot."""
        return [room.slot.state for room in self._rooms]

    def enter(self, block: int) -> int | None:
        """The slot that has the block when the current stream comes there; None for a resident one, or one that is
        entered already.

        Raises INTERNAL_ERROR for a block out of order, and what a load raised.
        """
        if self._active == block:
            self._entered += 1
            return None
        if self._active is not None:
            names = self._order.names
            raise StreamSynthError(
                ErrorCode.INTERNAL_ERROR, f"block {names[block]} was entered within block {names[self._active]}"
            )
        self._order.enter(block)
        room = self._bring(block) if block >= self._resident else None
        self._active, self._entered = block, 1
        try:
            self._fetch_ahead(block)
        except BaseException:
            self.leave(block)
            raise
        return None if room is None else room.slot.index

    def leave(self, block: int) -> bool:
        """Whether that was the outermost entry: the block's slot is free now."""
        self._entered -= 1
        if self._entered:
            return False
        self._active = None
        for room in self._rooms:
            if room.slot.block == block and room.slot.state is SlotState.IN_USE:
                room.released = self._transfer.fence()
                room.slot.release()
        return True

    def statistics(self) -> OffloadStatistics:
        """Waits until the device has done what it was given."""
        return replace(self._transfer.statistics(), on_demand=self._on_demand, discarded=self._discarded)

    def reset_statistics(self) -> None:
        self._transfer.reset()
        self._on_demand = self._discarded = 0

    def drain(self) -> None:
        """Give up what was fetched ahead; all slots are free then. Raises INTERNAL_ERROR inside a block."""
        if self._active is not None:
            name = self._order.names[self._active]
            raise StreamSynthError(ErrorCode.INTERNAL_ERROR, f"block {name} is in use")
        for room in self._rooms:
            if room.slot.state is not SlotState.FREE:
                self._discard(room)

    def close(self) -> None:
        """Let go of the device's memory."""
        self.drain()
        self._rooms.clear()

    def _bring(self, block: int) -> _Room:
        room = self._holding(block)
        if room is None:
            self._on_demand += 1
            room = self._load(block, wanted=())
        if room.slot.state is SlotState.LOADING:
            self._arrive(room)
        room.slot.use()
        return room

    def _arrive(self, room: _Room) -> None:
        asked = self._transfer.mark()
        began = time.perf_counter()
        try:
            room.arrival.wait(asked)
        except BaseException:
            room.slot.discard()
            raise
        self._transfer.host_waited(time.perf_counter() - began)
        room.slot.arrived()

    def _fetch_ahead(self, block: int) -> None:
        wanted = self._order.next_after(block, self._prefetch, first=self._resident)
        for each in wanted:
            if self._holding(each) is None:
                self._load(each, wanted)

    def _load(self, block: int, wanted: Sequence[int]) -> _Room:
        room = self._free_room(wanted)
        room.slot.load(block)
        began = time.perf_counter()
        try:
            room.arrival = self._host.load(block - self._resident, room.memory, room.released)
        except BaseException:
            room.slot.discard()
            raise
        self._transfer.host_waited(time.perf_counter() - began)
        return room

    def _free_room(self, wanted: Sequence[int]) -> _Room:
        """A free slot, or one whose block is not among the wanted."""
        usable = [room for room in self._rooms if room.slot.state is not SlotState.IN_USE]
        room = next((room for room in usable if room.slot.state is SlotState.FREE), None)
        if room is None:
            room = next(room for room in usable if room.slot.block not in wanted)
            self._discard(room)
        return room

    def _discard(self, room: _Room) -> None:
        """Copies into one slot follow one another on one stream; only what does not copy there has to be waited for."""
        self._discarded += 1
        try:
            if room.slot.state is SlotState.LOADING:
                room.arrival.wait()
        finally:
            room.slot.discard()

    def _holding(self, block: int) -> _Room | None:
        return next((room for room in self._rooms if room.slot.block == block), None)
