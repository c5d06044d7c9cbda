"""How a stage of several ranks ends: by one that hangs, by its server, or before it has begun."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import lone_rank
import numpy as np
import pytest
from over_http import metrics
from over_ranks import SHARDED, Asked, alone, rank_pids, started
from over_videos import VIDEOS, content, finished, until
from small_pipelines.clips import save

from streamsynth.engine.quant.cache import QuantCache
from streamsynth.errors import ErrorCode, StreamSynthError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("wan", tmp_path_factory.mktemp("wan"))


async def test_a_rank_that_hangs_is_found_by_the_heartbeat(folder: Path) -> None:
    async with started(folder, **SHARDED, heartbeat_timeout_s="3") as runtime:
        one, other = Asked(runtime, steps=200, seed=1), Asked(runtime, steps=200, seed=2)
        await asyncio.gather(one.reached(2), other.reached(2))
        os.kill(rank_pids()[1], signal.SIGSTOP)
        async with asyncio.timeout(15):
            outcomes = await asyncio.gather(one.flow.outcome, other.flow.outcome)
        assert {each.error.code for each in outcomes if each.error} == {ErrorCode.WORKER_DIED}


async def test_a_rank_that_hangs_at_its_clip_is_found_after_the_heartbeat_s_time(folder: Path) -> None:
    """Rank 0 goes on meanwhile, and its step loop beats: so it looks after the others itself."""
    async with started(folder, heartbeat_timeout_s="3") as runtime:
        first, second = Asked(runtime, seed=1, steps=5), Asked(runtime, seed=2, steps=200)
        await second.reached(2)
        os.kill(rank_pids()[1], signal.SIGSTOP)
        np.testing.assert_array_equal(await first.made(), alone(folder, first.request))
        async with asyncio.timeout(15):
            outcome = await second.flow.outcome
        assert outcome.error is not None and outcome.error.code is ErrorCode.WORKER_DIED


async def test_quantised_weights_are_the_same_from_the_cache_and_before_there_is_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank fills it; then both take what is there. What they share is the finished weights, and `auto` says how."""
    monkeypatch.setenv("STREAMSYNTH_CACHE", str(tmp_path))
    made = []
    for _ in range(2):
        async with started(folder, offload="true", quantisation="fp8_per_tensor") as runtime:
            made += await asyncio.gather(*(Asked(runtime, seed=seed).made() for seed in (1, 2)))
        assert len(QuantCache(tmp_path / "quantised").entries()) == 1
    np.testing.assert_array_equal(made[0], made[2])
    np.testing.assert_array_equal(made[1], made[3])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_gpus": "3", "ulysses_degree": "2"}, "ulysses_degree is 2; it must be a divisor of num_gpus, which is 3"),
        ({"folder": "/nowhere"}, "a folder in diffusers' layout"),
    ],
)
async def test_a_stage_that_cannot_start_says_why(changed: dict[str, str], said: str, folder: Path) -> None:
    with pytest.raises(StreamSynthError, match=said) as failed:
        async with started(folder, **changed):
            pass
    assert failed.value.code is ErrorCode.START_FAILED
    assert rank_pids() == {}


async def test_a_rank_that_fails_alone_at_the_start_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a divided sequence, where the other waits for it in the middle of a pass."""
    monkeypatch.setenv("PYTHONPATH", str(Path(lone_rank.__file__).parent), prepend=os.pathsep)
    with pytest.raises(StreamSynthError, match=r"stage diffusers\.denoiser did not load: rank 1 has ended") as failed:
        async with started(folder, engine=lone_rank.FAILING_AT_START, ulysses_degree="2"):
            pass
    assert failed.value.code is ErrorCode.START_FAILED
    assert rank_pids() == {}


@pytest.fixture
def deploy_file(folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "deploy.yaml"
    path.write_text(f"""
pipeline: diffusers
stages:
  denoiser:
    num_gpus: 2
    folder: {folder}
    device: cpu
    dtype: float32
    sizes: ["64x32"]
    max_frames: 9
    max_steps: 200
    offload: true
    sharing: sharded
""")
    return path


async def test_a_server_of_a_deploy_file_says_that_a_rank_died_and_goes_on(
    serve_process: Any, deploy_file: Path
) -> None:
    """Two jobs at once; the fixture sees that stopping it leaves no process."""
    server = serve_process("--deploy", str(deploy_file))
    asked = {"prompt": "a red fox", "size": "64x32", "num_frames": 5, "seed": 1}

    async def create(http: aiohttp.ClientSession, steps: int) -> str:
        async with http.post(VIDEOS, json={**asked, "num_inference_steps": steps}) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["id"])

    async def ready(http: aiohttp.ClientSession) -> dict[str, str]:
        async with http.get("/ready") as answer:
            stages: dict[str, str] = (await answer.json())["stages"]
            assert answer.status == (503 if stages else 200)
            return stages

    async with aiohttp.ClientSession(server.url) as http:
        assert await ready(http) == {}
        jobs = [await create(http, 100), await create(http, 99)]
        for job in jobs:
            await until(http, job, lambda each: each["step"] is not None and each["step"] > 1)
        ranks = rank_pids(server.pid)
        killed = time.monotonic()
        os.kill(ranks[1], signal.SIGKILL)
        for job in jobs:
            ended = await until(http, job, finished)
            assert (ended["status"], ended["error"]["code"]) == ("failed", "worker_died")
        assert time.monotonic() - killed < 15
        assert "its worker died and is being restarted" in (await ready(http))["diffusers.denoiser"]
        async with asyncio.timeout(60):
            while await ready(http):
                await asyncio.sleep(0.05)
        counted = await metrics(http)
        assert counted["streamsynth_worker_restarts_total"] == 1
        again = await create(http, 3)
        assert (await until(http, again, finished))["status"] == "completed"
        assert await content(http, again)
        assert not set(rank_pids(server.pid).values()) & set(ranks.values())


async def test_what_ranks_are_at_finishes_when_the_service_is_told_to_end(
    serve_process: Any, deploy_file: Path
) -> None:
    """Its ranks get the signal too. A job that was deleted does not hold it up."""
    server = serve_process("--deploy", str(deploy_file))
    asked = {"prompt": "a red fox", "size": "64x32", "num_frames": 5}
    async with aiohttp.ClientSession(server.url) as http:
        async with http.post(VIDEOS, json={**asked, "num_inference_steps": 200}) as answer:
            deleted = str((await answer.json())["id"])
        await until(http, deleted, lambda job: job["step"] is not None)
        async with http.delete(f"{VIDEOS}/{deleted}") as answer:
            assert answer.status == 200
        waiting = asyncio.create_task(http.post(f"{VIDEOS}/sync", json={**asked, "num_inference_steps": 200}))
        async with asyncio.timeout(20):
            while (await metrics(http)).get('streamsynth_engine{counter="live",stage="diffusers.denoiser"}') != 1:
                await asyncio.sleep(0.01)
        for pid in [*rank_pids(server.pid).values(), server.pid]:
            os.kill(pid, signal.SIGTERM)
        async with await waiting as answer:
            assert answer.status == 200
            assert (await answer.read())[4:8] == b"ftyp"
    assert (server.wait(), server.orphans) == (0, 0)


def test_a_server_that_is_killed_takes_its_ranks_with_it(serve_process: Any, deploy_file: Path) -> None:
    server = serve_process("--deploy", str(deploy_file))
    assert len(rank_pids(server.pid)) == 2
    server.kill()
    assert server.orphans == 0
