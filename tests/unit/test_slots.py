"""Who may enter a worker."""

import asyncio

import pytest

from streamsynth.engine.cost import Cost
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.workers.slots import Load, Slots


def slots(running: int = 1, queued: int = 1, timeout_s: float = 10.0, max_load: float = 0.7) -> Slots:
    return Slots(running=running, queued=queued, timeout_s=timeout_s, max_load=max_load)


async def test_slots_are_given_in_order_of_arrival() -> None:
    line = slots(queued=2)
    first, second, third = (line.reserve() for _ in range(3))
    assert [ticket.admitted for ticket in (first, second, third)] == [True, False, False]
    first.release()
    assert [second.admitted, third.admitted] == [True, False]
    second.release()
    await third.wait()


async def test_a_full_line_is_overload_with_a_time_to_try_again() -> None:
    """S54: more requests than slots wait, then are refused; nothing crashes."""
    line = slots(queued=0)
    line.reserve()
    with pytest.raises(StreamSynthError) as refused:
        line.reserve()
    assert refused.value.code is ErrorCode.OVERLOADED
    assert refused.value.retry_after_ms
    assert (line.held, line.queued) == (1, 0)


async def test_a_wait_that_takes_too_long_is_overload() -> None:
    line = slots(timeout_s=0.0)
    line.reserve()
    late = line.reserve()
    with pytest.raises(StreamSynthError) as refused:
        await late.wait()
    assert refused.value.code is ErrorCode.OVERLOADED
    late.release()
    assert line.queued == 0


async def test_a_waiter_that_gives_up_leaves_the_line_even_in_the_moment_of_its_turn() -> None:
    line = slots()
    first, second = line.reserve(), line.reserve()
    waiting = asyncio.create_task(second.wait())
    await asyncio.sleep(0)
    first.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    second.release()
    assert (line.held, line.queued) == (0, 0)


async def test_releasing_twice_frees_one_slot() -> None:
    line = slots(running=2)
    first = line.reserve()
    line.reserve()
    first.release()
    first.release()
    assert line.held == 1


async def test_nobody_enters_while_listeners_inside_run_dry() -> None:
    """S21: new requests wait before those inside fall below real time."""
    line = slots(running=9)
    line.reserve()
    line.set_load(Load(live=1, behind_s=0.5))
    late = line.reserve()
    assert (late.admitted, line.queued) == (False, 1)
    line.set_load(Load(live=1))
    await late.wait()
    assert line.held == 2


async def test_an_empty_worker_takes_one_whatever_it_last_said() -> None:
    line = slots()
    line.set_load(Load(behind_s=5.0, cost=Cost(shared=0.0, each=3.0)))
    assert line.reserve().admitted


async def test_nobody_enters_beyond_what_the_worker_can_make_in_real_time() -> None:
    """S21: also when all come at once, before the worker has said anything of them."""
    line = slots(running=9, queued=9)
    line.set_load(Load(cost=Cost(shared=0.0, each=0.23)))
    tickets = [line.reserve() for _ in range(6)]
    assert [ticket.admitted for ticket in tickets] == [True, True, True, False, False, False]
    line.set_load(Load(live=3, demand=3, cost=Cost(shared=0.0, each=0.13)))
    assert [ticket.admitted for ticket in tickets] == [True] * 5 + [False]
    tickets[0].release()
    assert tickets[5].admitted


async def test_how_much_a_worker_takes_on_is_the_stages_own() -> None:
    """A device that does nothing else: two videos that take 0.74 of it together are both let in."""
    for max_load, most in ((0.7, 1), (0.85, 2), (1.0, 2)):
        line = slots(running=9, queued=9, max_load=max_load)
        line.set_load(Load(cost=Cost(shared=0.0, each=0.37)))
        assert [line.reserve().admitted for _ in range(3)].count(True) == most


async def test_what_all_share_is_counted_once() -> None:
    line = slots(running=9, queued=9)
    line.set_load(Load(cost=Cost(shared=0.25, each=0.1)))
    assert [line.reserve().admitted for _ in range(6)] == [True] * 4 + [False] * 2


async def test_requests_that_nobody_listens_to_keep_nobody_out() -> None:
    line = slots(running=9)
    for _ in range(3):
        line.reserve()
    line.set_load(Load(live=3, demand=0, cost=Cost(shared=0.0, each=0.6)))
    assert line.reserve().admitted
    assert not line.reserve().admitted
