"""A stage of two ranks through NCCL, a device each. Needs two devices."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from over_ranks import SHARDED, STAGE, Asked, counters, rank_pids, started
from small_pipelines.clips import Pictures, make, options, save

from streamsynth.errors import ErrorCode
from streamsynth.models.diffusers.loading import load_clips
from streamsynth.video import VideoRequest

pytestmark = [pytest.mark.gpu, pytest.mark.gpus, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("wan", tmp_path_factory.mktemp("wan"))


def on_one_device(folder: Path, *asked: VideoRequest) -> list[Pictures]:
    engine = load_clips(**options(folder, device="cuda"))
    made = [make(engine, each)[0].pictures for each in asked]
    engine.close()
    return made


async def test_two_devices_make_what_one_makes_and_end_together(folder: Path) -> None:
    """DL-7, T6.10; then a rank is killed: typed errors within 15 s, and the stage serves again."""
    async with started(folder, device="cuda", **SHARDED) as runtime:
        both = [Asked(runtime, seed=1, steps=4), Asked(runtime, seed=2, steps=9, num_frames=5)]
        made = await asyncio.gather(*(each.made() for each in both))
        assert (await counters(runtime))["sharded_models"] == 2
        expected = await asyncio.to_thread(on_one_device, folder, *(each.request for each in both))
        for pictures, one in zip(made, expected, strict=True):
            np.testing.assert_array_equal(pictures, one)
        long = [Asked(runtime, steps=200, seed=seed) for seed in (1, 2)]
        await asyncio.gather(*(each.reached(2) for each in long))
        killed = time.monotonic()
        os.kill(rank_pids()[1], signal.SIGKILL)
        outcomes = await asyncio.gather(*(each.flow.outcome for each in long))
        assert time.monotonic() - killed < 15
        assert [each.error.code for each in outcomes if each.error] == [ErrorCode.WORKER_DIED] * 2
        async with asyncio.timeout(120):
            while STAGE in runtime.dead_stages():
                await asyncio.sleep(0.05)
        again = Asked(runtime, seed=1, steps=4)
        np.testing.assert_array_equal(await again.made(), expected[0])


@pytest.mark.parametrize("sharing", ["auto", "local"])
async def test_whole_copies_on_each_host_make_the_same(sharing: str, folder: Path) -> None:
    async with started(folder, device="cuda", offload="true", sharing=sharing) as runtime:
        both = [Asked(runtime, seed=1), Asked(runtime, seed=2)]
        made = await asyncio.gather(*(each.made() for each in both))
        expected = await asyncio.to_thread(on_one_device, folder, *(each.request for each in both))
        for pictures, one in zip(made, expected, strict=True):
            np.testing.assert_array_equal(pictures, one)


async def test_one_request_on_two_devices_is_nearly_what_one_makes(folder: Path) -> None:
    async with started(folder, device="cuda", ulysses_degree="2", **SHARDED) as runtime:
        one = Asked(runtime, seed=1)
        made = await one.made()
        (expected,) = await asyncio.to_thread(on_one_device, folder, one.request)
        assert np.abs(made.astype(int) - expected).mean() < 1
