"""Who may enter a worker."""

import asyncio

import pytest

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.workers.slots import Slots


def slots(running: int = 1, queued: int = 1, timeout_s: float = 10.0) -> Slots:
    return Slots(running=running, queued=queued, timeout_s=timeout_s)


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
    line.set_behind(0.5)
    late = line.reserve()
    assert (late.admitted, line.queued) == (False, 1)
    line.set_behind(0.0)
    await late.wait()
    assert line.held == 2


async def test_an_empty_worker_takes_one_whatever_it_last_said() -> None:
    line = slots()
    line.set_behind(5.0)
    assert line.reserve().admitted
