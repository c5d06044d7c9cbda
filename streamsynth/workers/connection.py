"""The server's end of a worker: requests go out, replies find their request by address or are dropped and counted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Chunk, Unit
from streamsynth.graph.edge import BrokenEdge, SendEnd
from streamsynth.interactions.messages import Interaction, Notice
from streamsynth.workers import wire
from streamsynth.workers.shared import MemoryReader

_RECEIVE_BYTES = 1 << 18


class WorkerRequest:
    """One request in a worker. Its chunks go straight to the sending end that it was opened with.

    `ended` resolves with the worker's last message, or fails with what ended the request.
    """

    def __init__(
        self,
        connection: WorkerConnection,
        address: wire.Address,
        output: SendEnd[Chunk],
        on_notice: Callable[[Notice], None] | None,
    ) -> None:
        self.address = address
        self.on_notice = on_notice
        self.ended: asyncio.Future[wire.Ended] = asyncio.get_running_loop().create_future()
        # A request that nobody waits for any more (its flow was cancelled) fails without a complaint.
        self.ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._connection = connection
        self._output = output
        self._granted = output.granted
        self._coalesce = max(1, output.statistics().capacity // 16)
        self._made = 0
        self._consumed = 0
        self._room = asyncio.Event()
        self._without_credit_since: float | None = None

    def push(self, text: str) -> None:
        self._connection.send(wire.Text(self.address, text))

    def feed(self, chunk: Chunk) -> None:
        """Pass on what another stage made. Raises ValueError if it is too large for a frame."""
        array = np.ascontiguousarray(chunk.array)
        sent = wire.Array(array.dtype.str, array.shape, inline=array.tobytes(), nbytes=array.nbytes)
        self._connection.send(
            wire.Feed(
                self.address,
                first_unit=chunk.first_unit,
                units=chunk.units,
                unit=chunk.unit,
                rate=chunk.rate,
                array=sent,
                marks=chunk.marks,
                final=chunk.final,
            )
        )

    async def wait_until_consumed(self, units: int) -> None:
        """Return when the worker has used up this many units of its input. The request may end before that."""
        while self._consumed < units:
            self._room.clear()
            await self._room.wait()

    def interact(self, interaction: Interaction) -> None:
        self._connection.send(wire.Interact(self.address, interaction))

    def finish(self) -> None:
        self._connection.send(wire.Finish(self.address))

    def grant(self, granted: int) -> None:
        """Pass credit on: at once when the worker has none left, else when it is worth a message."""
        if self._made >= self._granted or granted - self._granted >= self._coalesce:
            self._granted = granted
            self._connection.send(wire.Grant(self.address, granted))
            self._count_wait()

    def cancel(self) -> None:
        """Tell the worker to stop and forget the request: what is still on its way is stale. Idempotent."""
        self._connection.abandon(self)
        self._count_wait()

    def deliver(self, chunk: Chunk, consumed: int) -> bool:
        """False if nobody wants it. The edge cannot be full: the worker steps only while it has credit."""
        self._made += chunk.units
        if consumed > self._consumed:
            self._consumed = consumed
            self._room.set()
        if self._made >= self._granted and not chunk.final:
            self._without_credit_since = monotonic()
        try:
            self._output.send_nowait(chunk)
        except BrokenEdge:
            return False
        return True

    def _count_wait(self) -> None:
        if self._without_credit_since is not None:
            self._connection.credit_wait_s += monotonic() - self._without_credit_since
            self._without_credit_since = None


class WorkerConnection(asyncio.BufferedProtocol):
    """Talks to one worker, whose outputs count `unit`. `on_beat` and `on_lost` run on the loop, the latter once."""

    def __init__(
        self, memory: MemoryReader, unit: Unit, *, on_beat: Callable[[wire.Beat], None], on_lost: Callable[[], None]
    ) -> None:
        self.ready: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.stale_replies = 0
        self.credit_wait_s = 0.0
        """How long requests, all together, could not step because nobody read what they had made."""
        self._memory = memory
        self._unit = unit
        self._on_beat = on_beat
        self._on_lost = on_lost
        self._splitter = wire.FrameSplitter()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._live: dict[wire.Address, WorkerRequest] = {}
        self._leaving: dict[wire.Address, WorkerRequest] = {}
        self._checks: dict[wire.Address, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._transport: asyncio.Transport | None = None

    @property
    def occupied(self) -> int:
        """Requests that the worker still holds, cancelled ones included."""
        return len(self._live) + len(self._leaving)

    def open(
        self,
        session: int,
        generation: int,
        request: dict[str, Any],
        output: SendEnd[Chunk],
        on_notice: Callable[[Notice], None] | None = None,
    ) -> WorkerRequest:
        """Begin a request whose credit is that of `output`. `on_notice` hears what becomes of its interactions."""
        address = wire.Address(session, generation, next(self._numbers))
        opened = WorkerRequest(self, address, output, on_notice)
        self._live[address] = opened
        self.send(wire.Open(address, request, output.granted))
        output.on_credit(opened.grant)
        return opened

    async def check(self, session: int, request: dict[str, Any]) -> None:
        """Raises what the worker would refuse this request with. It answers between two of its steps."""
        address = wire.Address(session, 0, next(self._numbers))
        answer = self._checks[address] = asyncio.get_running_loop().create_future()
        try:
            self.send(wire.Check(address, request))
            await answer
        finally:
            del self._checks[address]

    def abandon(self, request: WorkerRequest) -> None:
        if self._live.pop(request.address, None) is not None:
            self._leaving[request.address] = request
            self.send(wire.Cancel(request.address))

    def send(self, message: wire.ToWorker) -> None:
        if self._transport is not None:
            self._transport.write(wire.encode(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        for body in self._splitter.feed(self._buffer[:nbytes]):
            message = wire.decode_to_server(body)
            match message:
                case wire.Output():
                    self._output(message)
                case wire.Noticed():
                    self._noticed(message)
                case wire.Ended():
                    self._ended(message)
                case wire.Beat():
                    self._on_beat(message)
                case wire.Ready():
                    if not self.ready.done():
                        self.ready.set_result(message)
                case wire.StartFailed():
                    if not self.ready.done():
                        self.ready.set_exception(StreamSynthError.from_wire(message.error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.ready.done():
            self.ready.set_exception(StreamSynthError(ErrorCode.START_FAILED, "the worker ended while it was starting"))
        ends = [request.ended for request in (*self._live.values(), *self._leaving.values())]
        waiting: list[asyncio.Future[Any]] = [*ends, *self._checks.values()]
        for end in waiting:
            if not end.done():
                message = "the worker that made this died; it is being restarted"
                end.set_exception(StreamSynthError(ErrorCode.WORKER_DIED, message, retry_after_ms=1000))
        self._live.clear()
        self._leaving.clear()
        self._on_lost()

    # Replies

    def _output(self, message: wire.Output) -> None:
        request = self._live.get(message.address)
        wanted = request is not None and request.deliver(
            Chunk(
                # Copied at once: a slow reader then holds the server's memory, never the worker's slots.
                array=np.array(self._memory.view(message.array)),
                first_unit=message.first_unit,
                units=message.units,
                unit=self._unit,
                rate=message.rate,
                final=message.final,
                marks=message.marks,
            ),
            message.consumed,
        )
        if message.array.offset is not None:
            self.send(wire.Release((message.array.offset,)))
        if not wanted:
            self.stale_replies += 1

    def _noticed(self, message: wire.Noticed) -> None:
        request = self._live.get(message.address)
        if request is None or request.on_notice is None:
            self.stale_replies += 1
            return
        for notice in message.notices:
            request.on_notice(notice)

    def _ended(self, message: wire.Ended) -> None:
        check = self._checks.get(message.address)
        if check is not None and not check.done():
            if message.error is not None:
                check.set_exception(StreamSynthError.from_wire(message.error))
            else:
                check.set_result(None)
            return
        request = self._live.pop(message.address, None) or self._leaving.pop(message.address, None)
        if request is None:
            self.stale_replies += 1
        elif request.ended.done():
            return
        elif message.error is not None:
            request.ended.set_exception(StreamSynthError.from_wire(message.error))
        else:
            request.ended.set_result(message)
