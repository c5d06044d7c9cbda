"""A flow: one request's passage through a graph, one coroutine a node, ended by exactly one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.edge import BrokenEdge, ReceiveEnd, SendEnd, open_edge


class Status(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class End:
    """The one terminal event of a flow. `error` is set exactly when `status` is FAILED."""

    status: Status
    error: StreamSynthError | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """A node's ends, by the name of the node (or flow input or output) at the other side of each edge."""

    inputs: Mapping[str, ReceiveEnd[Any]]
    outputs: Mapping[str, SendEnd[Any]]

    async def broadcast(self, item: Any) -> None:
        """Send one item to every output: the slowest sets the pace."""
        for end in self.outputs.values():
            await end.send(item)


@dataclass(frozen=True, slots=True)
class Node:
    """A stage of the flow. `run` returns when its work is done: its outputs are then closed and its inputs dropped."""

    name: str
    run: Callable[[Ports], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """An edge of the flow. `source` is a node or a flow input, `target` a node or a flow output: a name that is no
    node's belongs to the flow itself."""

    source: str
    target: str
    capacity: int
    cost: Callable[[Any], int] = lambda _: 1


class Flow:
    """Opens its edges at construction and starts its nodes at once; needs a running loop."""

    def __init__(self, nodes: Sequence[Node], wires: Sequence[Wire]) -> None:
        self.inputs: dict[str, SendEnd[Any]] = {}
        self.outputs: dict[str, ReceiveEnd[Any]] = {}
        self.outcome: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._cancelled = False
        ports = self._connect(nodes, wires)
        self._task = asyncio.create_task(self._run(nodes, ports))
        self._task.add_done_callback(self._finish)

    def _connect(self, nodes: Sequence[Node], wires: Sequence[Wire]) -> dict[str, Ports]:
        names = {node.name for node in nodes}
        inputs: dict[str, dict[str, ReceiveEnd[Any]]] = {name: {} for name in names}
        outputs: dict[str, dict[str, SendEnd[Any]]] = {name: {} for name in names}
        for wire in wires:
            if wire.source not in names and wire.target not in names:
                raise ValueError(f"the wire {wire.source} -> {wire.target} touches no node")
            send, receive = open_edge(wire.capacity, cost=wire.cost)
            if wire.source in names:
                outputs[wire.source][wire.target] = send
            else:
                self.inputs[wire.source] = send
            if wire.target in names:
                inputs[wire.target][wire.source] = receive
            else:
                self.outputs[wire.target] = receive
        return {name: Ports(inputs[name], outputs[name]) for name in names}

    async def _run(self, nodes: Sequence[Node], ports: Mapping[str, Ports]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for node in nodes:
                    group.create_task(_run_node(node, ports[node.name]), name=f"stage {node.name}")
        finally:
            # A flow that is cancelled before its nodes first ran must still end its outputs.
            for port in ports.values():
                _end_ports(port, StreamSynthError(ErrorCode.CANCELLED, "the flow was cancelled"))

    def cancel(self) -> None:
        """Stop at once: drop what is queued now and end as CANCELLED. Idempotent; does nothing after the end."""
        if self._cancelled or self._task.done():
            return
        self._cancelled = True
        for end in self.outputs.values():
            end.close()
        for send in self.inputs.values():
            send.close()
        self._task.cancel()

    def _finish(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._cancelled or task.cancelled():
            end = End(Status.CANCELLED)
        elif error is None:
            end = End(Status.COMPLETED)
        else:
            end = End(Status.FAILED, first_cause(error))
        if not self.outcome.done():
            self.outcome.set_result(end)


async def _run_node(node: Node, ports: Ports) -> None:
    error: BaseException | None = None
    try:
        await node.run(ports)
    except asyncio.CancelledError:
        error = StreamSynthError(ErrorCode.CANCELLED, "the flow was cancelled")
        raise
    except BaseException as caught:
        error = first_cause(caught)
        raise
    finally:
        _end_ports(ports, error)


def _end_ports(ports: Ports, error: BaseException | None) -> None:
    for send in ports.outputs.values():
        if error is None:
            send.close()
        else:
            send.abort(error)
    for receive in ports.inputs.values():
        receive.close()


def first_cause(error: BaseException) -> StreamSynthError:
    """The error to show for a failure, past group and edge wrappers; what nobody foresaw is an internal error."""
    if isinstance(error, StreamSynthError):
        return error
    if isinstance(error, BaseExceptionGroup):
        causes = [first_cause(inner) for inner in error.exceptions]
        # A broken edge is an effect; the node that broke it has the cause.
        causes.sort(key=lambda cause: cause.code is ErrorCode.CANCELLED)
        return causes[0]
    if isinstance(error, BrokenEdge) and error.cause is not None:
        return first_cause(error.cause)
    if isinstance(error, BrokenEdge):
        return StreamSynthError(ErrorCode.CANCELLED, "nobody receives what the flow makes")
    wrapped = StreamSynthError(ErrorCode.INTERNAL_ERROR, f"{type(error).__name__} in a stage")
    wrapped.__cause__ = error
    return wrapped
