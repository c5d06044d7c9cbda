"""Flows: coroutines joined by edges, ended by exactly one outcome."""

import asyncio
from itertools import pairwise

import pytest

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.edge import BrokenEdge, ClosedEdge, EdgeError, EndOfEdge
from streamsynth.graph.flow import Flow, Node, Ports, Status, Wire


async def upper(ports: Ports) -> None:
    (source,) = ports.inputs.values()
    async for item in source:
        await ports.broadcast(item.upper())


def chain(*names: str) -> list[Wire]:
    return [Wire(source=a, target=b, capacity=4) for a, b in pairwise(names)]


async def drain(flow: Flow, output: str) -> list[str]:
    return [item async for item in flow.outputs[output]]


async def test_a_chain_passes_items_on_and_completes() -> None:
    flow = Flow([Node("first", upper), Node("second", upper)], chain("in", "first", "second", "out"))
    await flow.inputs["in"].send("a")
    assert await flow.outputs["out"].receive() == "A"
    flow.inputs["in"].close()
    assert await drain(flow, "out") == []
    assert (await flow.outcome).status is Status.COMPLETED


async def test_one_input_can_feed_two_branches_that_join_again() -> None:
    async def split(ports: Ports) -> None:
        async for item in ports.inputs["text"]:
            await ports.broadcast(item)

    async def join(ports: Ports) -> None:
        async for left in ports.inputs["left"]:
            right = await ports.inputs["right"].receive()
            await ports.broadcast((left, right))

    async def reverse(ports: Ports) -> None:
        async for item in ports.inputs["split"]:
            await ports.broadcast(item[::-1])

    async def left(ports: Ports) -> None:
        async for item in ports.inputs["split"]:
            await ports.broadcast(item.upper())

    flow = Flow(
        [Node("split", split), Node("left", left), Node("right", reverse), Node("join", join)],
        [
            *chain("text", "split", "left", "join", "out"),
            *chain("split", "right", "join"),
        ],
    )
    for word in ("ab", "cd"):
        await flow.inputs["text"].send(word)
    flow.inputs["text"].close()
    assert await drain(flow, "out") == [("AB", "ba"), ("CD", "dc")]
    assert (await flow.outcome).status is Status.COMPLETED


async def test_a_full_output_stops_the_whole_chain() -> None:
    flow = Flow([Node("first", upper), Node("second", upper)], chain("in", "first", "second", "out"))
    sent = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            while True:
                await flow.inputs["in"].send("x")
                sent += 1
    # Four on each of three edges, one in each coroutine's hands.
    assert sent == 4 + 1 + 4 + 1 + 4
    flow.cancel()
    await flow.outcome


async def test_a_failure_reaches_the_reader_after_what_was_made_and_is_the_outcome() -> None:
    async def fail(ports: Ports) -> None:
        await ports.broadcast("made")
        raise StreamSynthError(ErrorCode.ENGINE_FAILED, "boom")

    flow = Flow([Node("bad", fail), Node("next", upper)], chain("in", "bad", "next", "out"))
    assert await flow.outputs["out"].receive() == "MADE"
    with pytest.raises(BrokenEdge):
        await flow.outputs["out"].receive()
    end = await flow.outcome
    assert end.status is Status.FAILED
    assert end.error is not None
    assert end.error.code is ErrorCode.ENGINE_FAILED


async def test_an_unforeseen_exception_is_an_internal_error_that_hides_its_text() -> None:
    async def fail(ports: Ports) -> None:
        raise RuntimeError("secret detail")

    end = await Flow([Node("bad", fail)], chain("in", "bad", "out")).outcome
    assert end.error is not None
    assert end.error.code is ErrorCode.INTERNAL_ERROR
    assert "secret" not in end.error.message


async def test_cancel_drops_what_is_queued_at_once_and_ends_once() -> None:
    ended: list[str] = []

    async def endless(ports: Ports) -> None:
        try:
            while True:
                await ports.broadcast("x")
        finally:
            ended.append("finally")

    flow = Flow([Node("endless", endless)], chain("in", "endless", "out"))
    await flow.outputs["out"].receive()
    flow.cancel()
    with pytest.raises(ClosedEdge):
        flow.outputs["out"].receive_nowait()
    assert (await flow.outcome).status is Status.CANCELLED
    flow.cancel()
    assert ended == ["finally"]


async def test_a_flow_cancelled_before_its_nodes_ran_still_ends() -> None:
    flow = Flow([Node("first", upper)], chain("in", "first", "out"))
    flow.cancel()
    assert (await flow.outcome).status is Status.CANCELLED


async def test_cancelling_after_the_end_changes_nothing() -> None:
    flow = Flow([Node("first", upper)], chain("in", "first", "out"))
    flow.inputs["in"].close()
    assert (await flow.outcome).status is Status.COMPLETED
    flow.cancel()
    with pytest.raises(EndOfEdge):
        flow.outputs["out"].receive_nowait()


@pytest.mark.parametrize("turns", range(12))
async def test_wherever_a_flow_is_cancelled_it_ends_once_and_frees_its_ends(turns: int) -> None:
    flow = Flow([Node("first", upper), Node("second", upper)], chain("in", "first", "second", "out"))

    async def talk() -> None:
        for _ in range(9):
            await flow.inputs["in"].send("x")
            await flow.outputs["out"].receive()

    talking = asyncio.create_task(talk())
    for _ in range(turns):
        await asyncio.sleep(0)
    flow.cancel()
    assert (await flow.outcome).status is Status.CANCELLED
    with pytest.raises(EdgeError):
        await talking


def test_a_wire_that_touches_no_node_is_refused() -> None:
    async def build() -> None:
        Flow([Node("first", upper)], [Wire(source="a", target="b", capacity=1)])

    with pytest.raises(ValueError, match="touches no node"):
        asyncio.run(build())
