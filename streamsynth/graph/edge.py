"""Bounded edges with two ends. The bound is a cost (samples, bytes, characters); free cost is credit to the sender."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class EdgeError(Exception):
    """Why an end of an edge cannot do what was asked."""


class EndOfEdge(EdgeError):
    """The sender closed its end and everything it sent has been received."""


class BrokenEdge(EdgeError):
    """The other end went away. `cause` is what it failed with, or None if it only stopped caring."""

    def __init__(self, cause: BaseException | None = None) -> None:
        super().__init__(str(cause) if cause else "the other end of the edge was closed")
        self.cause = cause


class ClosedEdge(EdgeError):
    """This end was closed by its own user."""


class WouldBlock(EdgeError):
    """Nothing to receive, or no credit to send, right now."""


@dataclass(frozen=True, slots=True)
class EdgeStatistics:
    """A snapshot; costs are in the edge's own measure. `peak_cost` may pass `capacity` by the last item sent."""

    capacity: int
    queued_items: int
    queued_cost: int
    peak_cost: int
    sent_items: int
    sent_cost: int
    received_items: int
    received_cost: int
    waiting_senders: int
    waiting_receivers: int


class _Edge(Generic[T]):
    """What both ends share. Waiters are woken all at once and look again: a cancelled one takes nothing with it."""

    def __init__(self, capacity: int, cost: Callable[[T], int]) -> None:
        if capacity < 1:
            raise ValueError(f"an edge's capacity is {capacity}; it must be at least 1")
        self.capacity = capacity
        self.cost = cost
        self.items: deque[T] = deque()
        self.queued_cost = 0
        self.peak_cost = 0
        self.sent_items = self.sent_cost = 0
        self.received_items = self.received_cost = 0
        self.ended = False
        self.aborted: BaseException | None = None
        self.sender_closed = False
        self.receiver_closed = False
        self.waiting_senders: set[asyncio.Future[None]] = set()
        self.waiting_receivers: set[asyncio.Future[None]] = set()
        self.on_credit: Callable[[int], None] | None = None

    def wake(self, waiters: set[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, waiters: set[asyncio.Future[None]]) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.add(waiter)
        try:
            await waiter
        finally:
            waiters.discard(waiter)

    @property
    def granted(self) -> int:
        return self.received_cost + self.capacity

    def statistics(self) -> EdgeStatistics:
        return EdgeStatistics(
            capacity=self.capacity,
            queued_items=len(self.items),
            queued_cost=self.queued_cost,
            peak_cost=self.peak_cost,
            sent_items=self.sent_items,
            sent_cost=self.sent_cost,
            received_items=self.received_items,
            received_cost=self.received_cost,
            waiting_senders=len(self.waiting_senders),
            waiting_receivers=len(self.waiting_receivers),
        )


class SendEnd(Generic[T]):
    """Where items go in. An item is taken while any credit is left, so one item may overdraw it."""

    def __init__(self, edge: _Edge[T]) -> None:
        self._edge = edge

    def send_nowait(self, item: T) -> None:
        """Raises WouldBlock without credit, BrokenEdge if nobody will receive, ClosedEdge after `close` or `abort`."""
        edge = self._edge
        if edge.sender_closed:
            raise ClosedEdge("this sending end is closed")
        if edge.receiver_closed:
            raise BrokenEdge
        if edge.queued_cost >= edge.capacity:
            raise WouldBlock(f"{edge.queued_cost} of {edge.capacity} are queued")
        cost = edge.cost(item)
        edge.items.append(item)
        edge.queued_cost += cost
        edge.peak_cost = max(edge.peak_cost, edge.queued_cost)
        edge.sent_items += 1
        edge.sent_cost += cost
        edge.wake(edge.waiting_receivers)

    async def send(self, item: T) -> None:
        """As `send_nowait`, but waits for credit. Cancelled while waiting, nothing was sent."""
        while True:
            try:
                return self.send_nowait(item)
            except WouldBlock:
                await self._edge.wait(self._edge.waiting_senders)

    @property
    def granted(self) -> int:
        """The total cost that may have been sent by now: what was received plus the capacity. Only grows."""
        return self._edge.granted

    def on_credit(self, callback: Callable[[int], None]) -> None:
        """Call `callback(granted)` whenever `granted` grows. Replaces an earlier callback."""
        self._edge.on_credit = callback

    def close(self) -> None:
        """Nothing more will be sent; what is queued is still delivered. Idempotent."""
        if not self._edge.sender_closed:
            self._edge.sender_closed = self._edge.ended = True
            self._edge.wake(self._edge.waiting_receivers)
            self._edge.wake(self._edge.waiting_senders)

    def abort(self, error: BaseException) -> None:
        """As `close`, but after what is queued the receiver gets BrokenEdge(error) instead of a clean end."""
        if not self._edge.sender_closed:
            self._edge.aborted = error
            self.close()

    def statistics(self) -> EdgeStatistics:
        return self._edge.statistics()


class ReceiveEnd(Generic[T]):
    """Where items come out, in order. Receiving is what returns credit."""

    def __init__(self, edge: _Edge[T]) -> None:
        self._edge = edge

    def receive_nowait(self) -> T:
        """Raises WouldBlock if nothing is queued, EndOfEdge or BrokenEdge after the last item, ClosedEdge if closed."""
        edge = self._edge
        if edge.receiver_closed:
            raise ClosedEdge("this receiving end is closed")
        if not edge.items:
            if edge.aborted is not None:
                raise BrokenEdge(edge.aborted)
            if edge.ended:
                raise EndOfEdge
            raise WouldBlock("nothing is queued")
        item = edge.items.popleft()
        cost = edge.cost(item)
        edge.queued_cost -= cost
        edge.received_items += 1
        edge.received_cost += cost
        edge.wake(edge.waiting_senders)
        if edge.on_credit is not None and cost and not edge.sender_closed:
            edge.on_credit(edge.granted)
        return item

    async def receive(self) -> T:
        """As `receive_nowait`, but waits for an item. Cancelled while waiting, nothing was taken."""
        while True:
            try:
                return self.receive_nowait()
            except WouldBlock:
                await self._edge.wait(self._edge.waiting_receivers)

    def close(self) -> None:
        """Drop what is queued and make the sender's next send raise BrokenEdge. Idempotent."""
        if not self._edge.receiver_closed:
            self._edge.receiver_closed = True
            self._edge.items.clear()
            self._edge.queued_cost = 0
            self._edge.wake(self._edge.waiting_senders)
            self._edge.wake(self._edge.waiting_receivers)

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            try:
                item = await self.receive()
            except EndOfEdge:
                return
            yield item

    def statistics(self) -> EdgeStatistics:
        return self._edge.statistics()


def open_edge(capacity: int, *, cost: Callable[[T], int]) -> tuple[SendEnd[T], ReceiveEnd[T]]:
    """Two ends of a new edge that holds items of total cost `capacity`, overdrawn by at most one item.

    `cost(item)` must stay the same for the life of the item.
    """
    edge: _Edge[T] = _Edge(capacity, cost)
    return SendEnd(edge), ReceiveEnd(edge)
