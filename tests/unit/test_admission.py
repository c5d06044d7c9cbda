"""Places and the queue: order, limits, shares, and that nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.admission import Admission, Ticket
from streamsynth.realtime.auth import LOCAL, Caller
from streamsynth.realtime.limits import Limits

ANN, BEN = Caller("key-1"), Caller("key-2")


def overloaded(action: object, *args: object) -> StreamSynthError:
    with pytest.raises(StreamSynthError) as caught:
        action(*args)  # type: ignore[operator]  # always a bound method
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.retry_after_ms is not None and 1000 <= caught.value.retry_after_ms <= 60_000
    return caught.value


def test_sessions_end_at_the_limit_and_come_back_when_released() -> None:
    """S39, S54: what is over the limit is refused, and a released place is free at once."""
    admission = Admission(Limits(sessions=2))
    first, _second = admission.open_session(LOCAL), admission.open_session(LOCAL)
    assert "2 sessions" in overloaded(admission.open_session, LOCAL).message
    first.release()
    first.release()
    assert admission.sessions == 1
    with admission.open_session(LOCAL):
        assert admission.sessions == 2
    assert admission.sessions == 1


async def test_utterances_start_in_the_order_of_their_requests() -> None:
    """S54: more requests than places wait, then they are refused; nothing crashes."""
    admission = Admission(Limits(running_utterances=1, queued_utterances=2))
    tickets = [admission.request(LOCAL) for _ in range(3)]
    assert [ticket.running for ticket in tickets] == [True, False, False]
    assert (admission.running, admission.queued) == (1, 2)
    overloaded(admission.request, LOCAL)
    tickets[0].release()
    assert [ticket.running for ticket in tickets] == [False, True, False]
    await tickets[1].granted()
    tickets[2].release()
    tickets[1].release()
    assert (admission.running, admission.queued) == (0, 0)


async def test_a_wait_that_is_cancelled_leaves_no_place_behind() -> None:
    """S25, S33: a client that leaves while it is queued frees its place in the queue."""
    admission = Admission(Limits(running_utterances=1))
    running = admission.request(LOCAL)

    entered = asyncio.Event()

    async def wait() -> None:
        with admission.request(LOCAL) as ticket:
            entered.set()
            await ticket.granted()

    waiting = asyncio.create_task(wait())
    await entered.wait()
    assert admission.queued == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (admission.running, admission.queued) == (1, 0)
    running.release()
    assert admission.running == 0


async def test_a_wait_without_a_turn_ends_as_overloaded() -> None:
    admission = Admission(Limits(running_utterances=1, queue_wait_s=0.001))
    admission.request(LOCAL)
    waiting = admission.request(LOCAL)
    with pytest.raises(StreamSynthError) as caught:
        await waiting.granted()
    assert caught.value.code is ErrorCode.OVERLOADED
    assert admission.queued == 0


async def test_one_key_cannot_take_the_share_of_another() -> None:
    admission = Admission(Limits(running_utterances=4, sessions=4, queued_utterances=4), shared=True)
    of_ann = [admission.request(ANN) for _ in range(4)]
    assert [ticket.running for ticket in of_ann] == [True, True, False, False]
    assert "its share" in overloaded(admission.request, ANN).message
    of_ben = [admission.request(BEN) for _ in range(3)]
    assert [ticket.running for ticket in of_ben] == [True, True, False]
    of_ben[0].release()
    assert of_ben[2].running and not of_ann[2].running
    of_ann[1].release()
    assert of_ann[2].running
    for _ in range(2):
        admission.open_session(ANN)
    assert "its share" in overloaded(admission.open_session, ANN).message
    admission.open_session(BEN)


def test_a_single_tenant_may_use_everything() -> None:
    admission = Admission(Limits(running_utterances=4))
    assert all(admission.request(LOCAL).running for _ in range(4))


def test_the_advice_to_wait_grows_with_the_queue() -> None:
    now = [0.0]
    admission = Admission(Limits(running_utterances=1, queued_utterances=3), clock=lambda: now[0])
    ticket = admission.request(LOCAL)
    alone = admission.retry_after_ms()
    for _ in range(3):
        admission.request(LOCAL)
    queued = admission.retry_after_ms()
    now[0] = 100.0
    ticket.release()
    assert alone < queued < admission.retry_after_ms()


@given(st.lists(st.tuples(st.sampled_from([ANN, BEN]), st.integers(0, 9)), max_size=60))
def test_whatever_happens_the_counts_add_up_and_nobody_startable_waits(steps: list[tuple[Caller, int]]) -> None:
    limits = Limits(running_utterances=3, queued_utterances=4)
    admission = Admission(limits, shared=True)
    held: list[Ticket] = []
    for caller, choice in steps:
        if choice < 6:
            try:
                held.append(admission.request(caller))
            except StreamSynthError as error:
                assert error.code is ErrorCode.OVERLOADED
        elif held:
            held.pop(choice % len(held)).release()
        running = [ticket for ticket in held if ticket.running]
        assert (admission.running, admission.queued) == (len(running), len(held) - len(running))
        assert admission.running <= 3 and admission.queued <= 4
    for ticket in held:
        ticket.release()
    assert (admission.running, admission.queued) == (0, 0)
