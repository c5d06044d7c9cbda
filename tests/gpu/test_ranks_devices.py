"""A stage of two ranks through NCCL, a device each. Needs two devices."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import lone_rank
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


@pytest.mark.parametrize("seed", [1000, 1001])
async def test_a_device_that_fails_where_the_other_does_not_ends_the_stage_within_15_s(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's host does not wait for the exchange that its device is in; it is found all the same."""
    monkeypatch.setenv("PYTHONPATH", str(Path(lone_rank.__file__).parent), prepend=os.pathsep)
    async with started(folder, engine=lone_rank.ENGINE, device="cuda", ulysses_degree="2", **SHARDED) as runtime:
        began = time.monotonic()
        outcome = await Asked(runtime, seed=seed).flow.outcome
        assert time.monotonic() - began < 15
        assert outcome.error is not None and outcome.error.code is ErrorCode.WORKER_DIED


async def test_what_fails_on_both_devices_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(lone_rank.__file__).parent), prepend=os.pathsep)
    async with started(folder, engine=lone_rank.ENGINE, device="cuda", ulysses_degree="2", **SHARDED) as runtime:
        outcome = await Asked(runtime, seed=1002).flow.outcome
        assert outcome.error is not None and outcome.error.code is ErrorCode.ENGINE_FAILED
        await Asked(runtime, seed=1).made()
        assert runtime.statistics().stages[STAGE].restarts == 0
