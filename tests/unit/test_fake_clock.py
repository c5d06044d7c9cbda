"""The fake clock: time moves only by `advance`, and sleepers wake at their own time."""

from __future__ import annotations

import asyncio

from streamsynth.testing.fake_clock import FakeClock, settle


async def test_sleepers_wake_in_order_each_at_its_own_time() -> None:
    clock = FakeClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.time()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 3.0), ("early", 1.0), ("later", 3.5)):
            group.create_task(sleeper(name, seconds))
        await clock.advance(3.0)
        assert woken == [("early", 1.0), ("late", 3.0)]
        assert (clock.time(), clock.sleeping) == (3.0, 1)
        await clock.advance(1.0)
    assert woken[-1] == ("later", 3.5)
    assert clock.time_ns() == 4_000_000_000


async def test_what_a_woken_sleeper_schedules_within_the_advance_wakes_too() -> None:
    clock = FakeClock()
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(0.25)
            ticks.append(clock.time())

    task = asyncio.create_task(ticker())
    await clock.advance(1.0)
    task.cancel()
    assert ticks == [0.25, 0.5, 0.75, 1.0]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(5))
    await settle()
    task.cancel()
    await settle()
    assert clock.sleeping == 0
    await clock.advance(10)


async def test_a_sleep_of_nothing_needs_no_advance() -> None:
    await FakeClock().sleep(0)
