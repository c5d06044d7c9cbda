"""One request on two ranks: each has a part of its sequence, and they begin and end it together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from over_ranks import SHARDED, Asked, alone, counters, started
from small_pipelines.clips import save

from streamsynth.runtime import Runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("wan", tmp_path_factory.mktemp("wan"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def divided(folder: Path) -> AsyncIterator[Runtime]:
    """One request on both ranks."""
    async with started(folder, **SHARDED, ulysses_degree="2") as runtime:
        yield runtime


async def test_one_request_on_all_ranks_is_nearly_what_one_process_makes(divided: Runtime, folder: Path) -> None:
    """Of a divided sequence only rounding may differ. One at a time: there is one replica."""
    asked = [Asked(divided, seed=seed, num_frames=frames) for seed, frames in ((1, 9), (2, 5), (3, 1))]
    made = await asyncio.gather(*(each.made() for each in asked))
    for each, pictures in zip(asked, made, strict=True):
        assert np.abs(pictures.astype(int) - alone(folder, each.request)).max() <= 1
    counted = await counters(divided)
    assert (counted["sharded_models"], counted["idle_passes"]) == (2, 0)


async def test_a_divided_request_that_is_cancelled_ends_on_every_rank(divided: Runtime, folder: Path) -> None:
    long = Asked(divided, steps=100)
    await long.reached(2)
    long.flow.cancel()
    await long.flow.idle()
    after = Asked(divided, seed=4)
    assert np.abs((await after.made()).astype(int) - alone(folder, after.request)).max() <= 1
