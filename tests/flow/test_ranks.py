"""A stage of two ranks, processes over gloo: what each makes is what one alone makes; they live and die together."""

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
from over_ranks import SHARDED, STAGE, Asked, alone, counters, rank_pids, started
from small_pipelines.clips import save

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.flow import Status
from streamsynth.runtime import Runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("wan", tmp_path_factory.mktemp("wan"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sharded(folder: Path) -> AsyncIterator[Runtime]:
    async with started(folder, **SHARDED) as runtime:
        yield runtime


async def test_two_requests_at_once_are_to_the_bit_what_one_process_makes(sharded: Runtime, folder: Path) -> None:
    """DL-7, T6.10: of other lengths and numbers of steps, so that one rank goes on for the other at the end."""
    both = [Asked(sharded, seed=1, steps=4), Asked(sharded, seed=2, steps=9, num_frames=5)]
    made = await asyncio.gather(*(each.made() for each in both))
    for each, pictures in zip(both, made, strict=True):
        np.testing.assert_array_equal(pictures, alone(folder, each.request))
    counted = await counters(sharded)
    assert (counted["ranks"], counted["sharded_models"]) == (2, 2)
    assert counted["idle_passes"] > 0


async def test_both_are_under_way_at_the_same_time(sharded: Runtime) -> None:
    first, second = Asked(sharded, steps=100, seed=1), Asked(sharded, steps=100, seed=2)
    await asyncio.gather(first.reached(3), second.reached(3))
    assert max(first.step, second.step) < 100
    for each in (first, second):
        each.flow.cancel()
        await each.flow.idle()


async def test_fewer_requests_than_ranks_keep_nobody_waiting(sharded: Runtime, folder: Path) -> None:
    """DL-16: the other rank takes part without."""
    before = (await counters(sharded))["clips"]
    for seed in (3, 4):
        one = Asked(sharded, seed=seed)
        np.testing.assert_array_equal(await one.made(), alone(folder, one.request))
    assert (await counters(sharded))["clips"] == before + 2


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_request_that_is_cancelled_ends_alone(cancelled: int, sharded: Runtime, folder: Path) -> None:
    """On rank 0 and on the other: its rank goes on without it, and is there for the next request at once."""
    both = [Asked(sharded, steps=30, seed=seed) for seed in (1, 2)]
    await asyncio.gather(*(each.reached(2) for each in both))
    stays = both[1 - cancelled]
    both[cancelled].flow.cancel()
    assert (await both[cancelled].flow.outcome).status is Status.CANCELLED
    await both[cancelled].flow.idle()
    third = Asked(sharded, seed=5)
    pictures, others = await asyncio.gather(stays.made(), third.made())
    np.testing.assert_array_equal(pictures, alone(folder, stays.request))
    np.testing.assert_array_equal(others, alone(folder, third.request))


async def test_more_requests_than_ranks_wait_their_turn(sharded: Runtime, folder: Path) -> None:
    asked = [Asked(sharded, seed=seed, steps=2 + seed) for seed in range(5)]
    made = await asyncio.gather(*(each.made() for each in asked))
    for each, pictures in zip(asked, made, strict=True):
        np.testing.assert_array_equal(pictures, alone(folder, each.request))


async def test_what_cannot_be_made_is_refused_alone(sharded: Runtime, folder: Path) -> None:
    """By rank 0, before any other rank hears of it."""
    wrong, right = Asked(sharded, num_frames=8), Asked(sharded, seed=6)
    with pytest.raises(StreamSynthError) as refused:
        await wrong.made()
    assert (refused.value.code, refused.value.param) == (ErrorCode.INVALID_VALUE, "num_frames")
    np.testing.assert_array_equal(await right.made(), alone(folder, right.request))


@pytest.mark.parametrize("rank", [1, 0])
async def test_a_killed_rank_fails_the_wave_and_the_stage_restarts(rank: int, sharded: Runtime, folder: Path) -> None:
    """Typed errors within 15 s, no rank left, and the next request is served."""
    both = [Asked(sharded, steps=200, seed=seed) for seed in (1, 2)]
    await asyncio.gather(*(each.reached(2) for each in both))
    before = rank_pids()
    restarts = sharded.statistics().stages[STAGE].restarts
    killed = time.monotonic()
    os.kill(before[rank], signal.SIGKILL)
    outcomes = await asyncio.gather(*(each.flow.outcome for each in both))
    assert time.monotonic() - killed < 15
    assert [each.error.code for each in outcomes if each.error] == [ErrorCode.WORKER_DIED] * 2
    assert STAGE in sharded.dead_stages()
    async with asyncio.timeout(60):
        while sharded.dead_stages():
            await asyncio.sleep(0.05)
    assert sharded.statistics().stages[STAGE].restarts == restarts + 1
    after = rank_pids()
    assert sorted(after) == [0, 1] and not set(after.values()) & set(before.values())
    again = Asked(sharded, seed=7)
    np.testing.assert_array_equal(await again.made(), alone(folder, again.request))
