"""The load generators: how many at once, when they arrive, and what the numbers that come of them mean."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter

import numpy as np
import pytest

from streamsynth.bench.load import closed_loop, open_loop
from streamsynth.bench.statistics import quantile, slope
from streamsynth.testing.fake_clock import FakeClock


async def test_a_closed_loop_keeps_its_number_of_clients_busy() -> None:
    clock = FakeClock()
    running, most = 0, 0

    async def work(client: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await clock.sleep(1.0)
        running -= 1
        return client

    load = asyncio.create_task(closed_loop(3, 4.5, work, clock=clock.time))
    await clock.advance(10)
    done = await load
    assert most == 3
    assert Counter(done) == {0: 5, 1: 5, 2: 5}


async def test_clients_of_a_closed_loop_can_begin_one_after_the_other() -> None:
    """All at once they would stay in step, and every one of them would be late for the others."""
    clock = FakeClock()
    began: list[float] = []

    async def work(client: int) -> None:
        began.append(clock.time())

    load = asyncio.create_task(closed_loop(4, 0, work, spread_s=1.0, clock=clock.time, sleep=clock.sleep))
    await clock.advance(2)
    await load
    assert began == [0, 0.25, 0.5, 0.75]


async def test_each_client_of_a_closed_loop_works_at_least_once() -> None:
    async def work(client: int) -> int:
        return client

    assert await closed_loop(2, 0, work) == [0, 1]


async def test_arrivals_of_an_open_loop_wait_for_nobody() -> None:
    """An open loop shows what a closed one hides: work that takes longer than the gap between arrivals."""
    clock = FakeClock()
    arrived: list[float] = []

    async def work(number: int) -> float:
        arrived.append(clock.time())
        await clock.sleep(60.0)
        return clock.time()

    load = asyncio.create_task(open_loop(10, 100, work, rng=random.Random(1), clock=clock.time, sleep=clock.sleep))
    await clock.advance(200)
    done = await load
    gaps = np.diff(arrived)
    assert len(done) == len(arrived)
    assert abs(len(arrived) - 1000) < 3 * math.sqrt(1000)
    assert gaps.mean() == pytest.approx(0.1, rel=0.1)
    assert gaps.std() == pytest.approx(0.1, rel=0.1)
    assert arrived[-1] <= 100


async def test_a_rate_must_be_positive() -> None:
    async def work(number: int) -> None: ...

    with pytest.raises(ValueError, match="rate is 0"):
        await open_loop(0, 1, work, rng=random.Random(1))


async def test_a_failing_client_ends_the_load() -> None:
    async def work(client: int) -> None:
        raise LookupError(client)

    with pytest.raises(ExceptionGroup):
        await closed_loop(2, 10, work)


def test_quantiles() -> None:
    assert quantile([1, 2, 3, 4], 0.5) == 2.5
    assert quantile(range(101), 0.99) == 99
    assert math.isnan(quantile([], 0.5))


def test_a_straight_line_has_its_slope_and_no_doubt() -> None:
    line = slope(range(100), [3.0 * x + 7 for x in range(100)])
    assert line.per_unit == pytest.approx(3)
    assert line.upper_95 == pytest.approx(3)


def test_the_bound_covers_the_true_slope_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    x = np.arange(60)
    covered = sum(slope(x, 0.5 * x + rng.normal(0, 10, 60)).upper_95 >= 0.5 for _ in range(400))
    assert 0.95 <= covered / 400 <= 1.0


def test_a_single_step_is_bounded_and_is_no_proof_of_growth() -> None:
    """Memory grows in steps: the points are not as many as they look."""
    x = np.arange(400)
    line = slope(x, np.where(x < 200, 0.0, 40.0))
    assert 0.1 < line.per_unit < 0.2
    assert line.per_unit < line.upper_95 < 2 * line.per_unit


def test_residuals_that_hang_together_are_not_counted_one_by_one() -> None:
    rng = np.random.default_rng(5)
    x = np.arange(400)

    def drifting() -> np.ndarray:
        return np.convolve(rng.normal(0, 1, 430), np.ones(31) / math.sqrt(31), "valid")

    covered = sum(slope(x, 0.01 * x + drifting()).upper_95 >= 0.01 for _ in range(400))
    assert covered / 400 > 0.93


@pytest.mark.parametrize("x", [[1, 2], [1, 1, 1]])
def test_no_slope_without_points(x: list[float]) -> None:
    with pytest.raises(ValueError, match="a slope needs"):
        slope(x, x)
