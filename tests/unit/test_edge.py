"""Edges: two ends, a bound, four errors, credit."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.graph.edge import BrokenEdge, ClosedEdge, EndOfEdge, WouldBlock, open_edge


def test_items_come_out_in_order_and_then_the_end() -> None:
    send, receive = open_edge(10, cost=len)
    send.send_nowait("one")
    send.send_nowait("two")
    send.close()
    assert [receive.receive_nowait(), receive.receive_nowait()] == ["one", "two"]
    with pytest.raises(EndOfEdge):
        receive.receive_nowait()


def test_without_credit_a_send_would_block_and_one_item_may_overdraw() -> None:
    send, receive = open_edge(4, cost=len)
    send.send_nowait("abc")
    send.send_nowait("defgh")
    with pytest.raises(WouldBlock):
        send.send_nowait("i")
    receive.receive_nowait()
    with pytest.raises(WouldBlock):
        send.send_nowait("i")
    receive.receive_nowait()
    send.send_nowait("i")
    assert send.statistics().peak_cost == 8


def test_nothing_queued_would_block() -> None:
    _, receive = open_edge(1, cost=len)
    with pytest.raises(WouldBlock):
        receive.receive_nowait()


def test_a_closed_receiver_breaks_the_sender_and_drops_what_is_queued() -> None:
    send, receive = open_edge(9, cost=len)
    send.send_nowait("x")
    receive.close()
    with pytest.raises(BrokenEdge):
        send.send_nowait("y")
    with pytest.raises(ClosedEdge):
        receive.receive_nowait()
    assert receive.statistics().queued_items == 0


def test_my_own_closed_end_is_an_error_of_its_own() -> None:
    send, _ = open_edge(9, cost=len)
    send.close()
    with pytest.raises(ClosedEdge):
        send.send_nowait("x")


def test_an_aborted_edge_delivers_what_was_sent_and_then_the_cause() -> None:
    send, receive = open_edge(9, cost=len)
    send.send_nowait("x")
    send.abort(RuntimeError("why"))
    assert receive.receive_nowait() == "x"
    with pytest.raises(BrokenEdge) as broken:
        receive.receive_nowait()
    assert str(broken.value.cause) == "why"


async def test_a_waiting_sender_goes_on_when_something_is_received() -> None:
    send, receive = open_edge(1, cost=len)
    await send.send("a")
    waiting = asyncio.create_task(send.send("b"))
    await asyncio.sleep(0)
    assert send.statistics().waiting_senders == 1
    assert await receive.receive() == "a"
    await waiting
    assert await receive.receive() == "b"


async def test_a_receiver_cancelled_while_waiting_loses_nothing() -> None:
    send, receive = open_edge(1, cost=len)
    waiting = asyncio.create_task(receive.receive())
    await asyncio.sleep(0)
    send.send_nowait("a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert receive.receive_nowait() == "a"


async def test_a_sender_cancelled_while_waiting_sent_nothing() -> None:
    send, receive = open_edge(1, cost=len)
    send.send_nowait("a")
    waiting = asyncio.create_task(send.send("b"))
    await asyncio.sleep(0)
    receive.receive_nowait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(WouldBlock):
        receive.receive_nowait()


async def test_closing_either_end_wakes_whoever_waits_at_the_other() -> None:
    send, receive = open_edge(1, cost=len)
    waiting = asyncio.create_task(receive.receive())
    await asyncio.sleep(0)
    send.close()
    with pytest.raises(EndOfEdge):
        await waiting
    send, receive = open_edge(1, cost=len)
    send.send_nowait("a")
    blocked = asyncio.create_task(send.send("b"))
    await asyncio.sleep(0)
    receive.close()
    with pytest.raises(BrokenEdge):
        await blocked


async def test_iteration_ends_with_the_edge() -> None:
    send, receive = open_edge(9, cost=len)
    send.send_nowait("a")
    send.send_nowait("b")
    send.close()
    assert [item async for item in receive] == ["a", "b"]


def test_credit_is_an_absolute_total_that_grows_as_items_are_received() -> None:
    send, receive = open_edge(10, cost=len)
    grants: list[int] = []
    send.on_credit(grants.append)
    assert send.granted == 10
    send.send_nowait("abc")
    send.send_nowait("de")
    receive.receive_nowait()
    receive.receive_nowait()
    assert grants == [13, 15]


@given(st.lists(st.one_of(st.integers(0, 7), st.none()), max_size=60), st.integers(1, 9))
def test_whatever_the_order_the_bound_holds_and_the_books_balance(steps: list[int | None], capacity: int) -> None:
    send, receive = open_edge(capacity, cost=lambda item: item)
    sent: list[int] = []
    received: list[int] = []
    for step in steps:
        try:
            if step is None:
                received.append(receive.receive_nowait())
            else:
                send.send_nowait(step)
                sent.append(step)
        except WouldBlock:
            pass
        books = send.statistics()
        assert books.queued_cost == sum(sent) - sum(received)
        assert books.queued_cost <= capacity + 7
        assert (books.sent_items, books.received_items) == (len(sent), len(received))
    assert received == sent[: len(received)]


def test_an_edge_without_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        open_edge(0, cost=len)
