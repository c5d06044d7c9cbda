"""Two replicas that share nothing: each makes its clips at its own pace, and the other does not notice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from over_ranks import Asked, alone, counters, rank_pids, started
from small_pipelines.clips import save

from streamsynth.errors import ErrorCode
from streamsynth.graph.flow import Status
from streamsynth.runtime import Runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("wan", tmp_path_factory.mktemp("wan"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apart(folder: Path) -> AsyncIterator[Runtime]:
    async with started(folder, offload="true", sharing="local") as runtime:
        yield runtime


async def test_more_requests_than_replicas_are_to_the_bit_what_one_process_makes(apart: Runtime, folder: Path) -> None:
    """T6.10: of other lengths and numbers of steps."""
    asked = [Asked(apart, seed=seed, steps=2 + 2 * seed, num_frames=(1, 5, 9)[seed % 3]) for seed in range(5)]
    made = await asyncio.gather(*(each.made() for each in asked))
    for each, pictures in zip(asked, made, strict=True):
        np.testing.assert_array_equal(pictures, alone(folder, each.request))
        assert each.step == each.request.steps
    counted = await counters(apart)
    assert (counted["ranks"], counted["sharded_models"]) == (2, 0)


async def test_a_rank_that_stands_still_keeps_no_other_from_its_clips(apart: Runtime, folder: Path) -> None:
    """Each step and each decode is a rank's own business. The first request is rank 0's, the second rank 1's."""
    first, second = Asked(apart, seed=1, steps=60), Asked(apart, seed=2, steps=60)
    await asyncio.gather(first.reached(1), second.reached(1))
    stopped = rank_pids()[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        np.testing.assert_array_equal(await first.made(), alone(folder, first.request))
        third = Asked(apart, seed=3)
        np.testing.assert_array_equal(await third.made(), alone(folder, third.request))
        assert second.step < 60
    finally:
        os.kill(stopped, signal.SIGCONT)
    np.testing.assert_array_equal(await second.made(), alone(folder, second.request))


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_request_that_is_cancelled_ends_alone(cancelled: int, apart: Runtime, folder: Path) -> None:
    """On rank 0 and on the other, whose replica takes the next request."""
    both = [Asked(apart, steps=60, seed=seed) for seed in (1, 2)]
    await asyncio.gather(*(each.reached(2) for each in both))
    both[cancelled].flow.cancel()
    assert (await both[cancelled].flow.outcome).status is Status.CANCELLED
    third = Asked(apart, seed=5)
    pictures, others = await asyncio.gather(both[1 - cancelled].made(), third.made())
    np.testing.assert_array_equal(pictures, alone(folder, both[1 - cancelled].request))
    np.testing.assert_array_equal(others, alone(folder, third.request))


async def test_a_killed_rank_fails_what_is_under_way_and_the_stage_restarts(apart: Runtime, folder: Path) -> None:
    both = [Asked(apart, steps=200, seed=seed) for seed in (1, 2)]
    await asyncio.gather(*(each.reached(2) for each in both))
    killed = time.monotonic()
    os.kill(rank_pids()[1], signal.SIGKILL)
    outcomes = await asyncio.gather(*(each.flow.outcome for each in both))
    assert time.monotonic() - killed < 15
    assert [each.error.code for each in outcomes if each.error] == [ErrorCode.WORKER_DIED] * 2
    async with asyncio.timeout(60):
        while apart.dead_stages():
            await asyncio.sleep(0.05)
    again = Asked(apart, seed=7)
    np.testing.assert_array_equal(await again.made(), alone(folder, again.request))
