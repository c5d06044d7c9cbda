"""One request on two ranks, of which one fails: nobody hangs, and what can go on goes on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import lone_rank
import numpy as np
import pytest
import pytest_asyncio
from over_ranks import SHARDED, STAGE, Asked, alone, started
from small_pipelines.clips import save

from streamsynth.errors import ErrorCode
from streamsynth.runtime import Runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("wan", tmp_path_factory.mktemp("wan"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sharded", "whole"])
async def divided(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    """Once for all tests of each way: what they do to it, it survives."""
    weights = SHARDED if request.param == "sharded" else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(lone_rank.__file__).parent), prepend=os.pathsep)
        async with started(folder, engine=lone_rank.ENGINE, ulysses_degree="2", **weights) as runtime:
            yield runtime


@pytest.mark.parametrize("seed", [1002, 1004])
async def test_what_fails_on_both_ranks_fails_alone(seed: int, divided: Runtime, folder: Path) -> None:
    """In a pass, or before the first one: the ranks are where they were."""
    restarts = divided.statistics().stages[STAGE].restarts
    error = (await Asked(divided, seed=seed).flow.outcome).error
    assert error is not None and error.code is ErrorCode.ENGINE_FAILED
    good = Asked(divided, seed=1)
    assert np.abs((await good.made()).astype(int) - alone(folder, good.request)).max() <= 1
    assert divided.statistics().stages[STAGE].restarts == restarts


@pytest.mark.parametrize("seed", [1000, 1001, 1003])
async def test_a_rank_that_fails_where_the_other_does_not_ends_the_stage_within_15_s(
    seed: int, divided: Runtime, folder: Path
) -> None:
    """Rank 0 in a pass, rank 1 in a pass, and rank 1 before one: the other waits for it in a collective, which nothing
    else would end before the heartbeat does, after 300 s."""
    restarts = divided.statistics().stages[STAGE].restarts
    bad, waits = Asked(divided, seed=seed), Asked(divided, seed=2)
    began = time.monotonic()
    outcomes = await asyncio.gather(bad.flow.outcome, waits.flow.outcome)
    assert time.monotonic() - began < 15
    assert [each.error.code for each in outcomes if each.error] == [ErrorCode.WORKER_DIED] * 2
    async with asyncio.timeout(60):
        while divided.dead_stages():
            await asyncio.sleep(0.05)
    assert divided.statistics().stages[STAGE].restarts == restarts + 1
    good = Asked(divided, seed=3)
    assert np.abs((await good.made()).astype(int) - alone(folder, good.request)).max() <= 1
