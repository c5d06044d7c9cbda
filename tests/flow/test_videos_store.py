"""What is kept of `/v1/videos`: through a crash, an orderly end, a full store and the wish for too large a file."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from over_http import draining, ended
from over_videos import VIDEOS, content, create, finished, frames, refusal, show, until

from streamsynth.testing.server_process import ServerProcess

SLOW = ("--model", "paint", "--set", "brush.step_ms=60")


@pytest.fixture
def serve(serve_process: Any, tmp_path: Path) -> Any:
    """Starts a server on the test's own folder, again and again."""

    def start(*args: str) -> ServerProcess:
        server: ServerProcess = serve_process(*SLOW, "--data", str(tmp_path), *args)
        return server

    return start


async def test_a_crash_loses_no_job(serve: Any, tmp_path: Path) -> None:
    """What was completed is there, byte for byte; what ran and what waited has failed, and says why."""
    server = serve("--set", "brush.max_num_seqs=1")
    async with aiohttp.ClientSession(server.url) as http:
        done = await create(http, "green", num_frames=21)
        done = await until(http, done["id"], finished)
        data = await content(http, done["id"])
        running = await create(http, num_frames=16_000)
        await until(http, running["id"], lambda job: job["frames_made"] > 0)
        waiting = await create(http, num_frames=9)
    server.kill()

    async with aiohttp.ClientSession(serve().url) as http:
        assert await show(http, done["id"]) == done
        assert await content(http, done["id"]) == data
        for lost in (running, waiting):
            job = await show(http, lost["id"])
            assert (job["status"], job["error"]["code"]) == ("failed", "interrupted")
            assert {**job, "status": "", "error": None, "completed_at": None, "expires_at": None} == {
                **lost,
                "status": "",
            }
        async with http.get(VIDEOS) as answer:
            assert len((await answer.json())["data"]) == 3
    kept = {name.partition(".")[2] for name in os.listdir(tmp_path)}
    assert kept == {"", "json", "mp4", "jpg"}, "no half-made file is left"


async def test_a_server_that_ends_in_order_lets_a_running_job_finish(serve: Any) -> None:
    server = serve()
    async with aiohttp.ClientSession(server.url) as http:
        job = await create(http, num_frames=81)
        await until(http, job["id"], lambda each: each["frames_made"] > 0)
        os.kill(server.pid, signal.SIGTERM)
        await draining(http)
        async with http.post(VIDEOS, json={"prompt": "red"}) as answer:
            assert answer.status == 503
    await ended(server)
    async with aiohttp.ClientSession(serve().url) as http:
        assert (await show(http, job["id"]))["status"] == "completed"
        assert frames(await content(http, job["id"])) == list(range(81))


async def test_what_does_not_finish_in_the_drain_time_has_failed(serve: Any) -> None:
    server = serve("--limit", "drain_s=0.2", "--set", "brush.max_num_seqs=1")
    async with aiohttp.ClientSession(server.url) as http:
        running = await create(http, num_frames=16_000)
        await until(http, running["id"], lambda job: job["frames_made"] > 0)
        waiting = await create(http, num_frames=9)
    assert server.stop() == 0
    async with aiohttp.ClientSession(serve().url) as http:
        for lost in (running, waiting):
            job = await show(http, lost["id"])
            assert (job["status"], job["error"]["code"]) == ("failed", "interrupted")


async def test_the_store_keeps_the_newest_within_its_count(serve: Any) -> None:
    async with aiohttp.ClientSession(serve("--limit", "stored_videos=2").url) as http:
        jobs = []
        for _ in range(3):
            jobs.append(await create(http, num_frames=9))
            await until(http, jobs[-1]["id"], finished)
        assert (await refusal(http, "GET", f"{VIDEOS}/{jobs[0]['id']}"))[0] == 404
        assert [(await show(http, job["id"]))["status"] for job in jobs[1:]] == ["completed"] * 2


async def test_a_file_that_outgrows_the_store_fails_and_leaves_nothing(serve: Any, tmp_path: Path) -> None:
    async with aiohttp.ClientSession(serve("--limit", "stored_video_bytes=12000").url) as http:
        small = await create(http, num_frames=9)
        await until(http, small["id"], finished)
        large = await until(http, (await create(http, num_frames=16_000))["id"], finished)
        assert (large["status"], large["error"]["code"]) == ("failed", "message_too_large")
        assert "12000 bytes, the limit stored_video_bytes" in large["error"]["message"]
        assert (await refusal(http, "GET", f"{VIDEOS}/{small['id']}"))[0] == 404, "it made room for the larger one"
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".mp4", ".part", ".jpg"))]


async def test_a_file_that_the_disk_does_not_take_fails_and_leaves_nothing(serve: Any, tmp_path: Path) -> None:
    """The kernel refuses what is beyond a size, as it does on a full disk."""
    server = serve()
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (40_000, 40_000))
    async with aiohttp.ClientSession(server.url) as http:
        job = await until(http, (await create(http, num_frames=16_000))["id"], finished)
        assert (job["status"], job["error"]["code"], job["bytes"]) == ("failed", "internal_error", 0)
        assert job["error"]["message"] == "the video cannot be written: File too large"
    assert sorted(os.listdir(tmp_path)) == ["lock", f"{job['id']}.json"]


async def test_a_folder_that_is_gone_refuses_new_jobs_by_what_the_disk_says(serve: Any, tmp_path: Path) -> None:
    async with aiohttp.ClientSession(serve().url) as http:
        os.rename(tmp_path, tmp_path.with_name("elsewhere"))
        async with http.post(VIDEOS, json={"prompt": "red"}) as answer:
            assert answer.status == 500
            assert "cannot be written: No such file or directory" in (await answer.json())["error"]["message"]
        async with http.get(VIDEOS) as answer:
            assert (await answer.json())["data"] == []


async def test_a_finished_video_goes_when_its_time_is_over(serve: Any) -> None:
    async with aiohttp.ClientSession(serve("--limit", "stored_video_s=1").url) as http:
        job = await create(http, num_frames=9)
        job = await until(http, job["id"], finished)
        assert job["expires_at"] == job["completed_at"] + 1
        while (await refused_or_shown(http, job["id"])) == 200:
            pass


async def refused_or_shown(http: aiohttp.ClientSession, job_id: str) -> int:
    async with http.get(f"{VIDEOS}/{job_id}") as answer:
        await answer.read()
        return answer.status


def test_two_servers_do_not_share_a_folder(serve: Any) -> None:
    serve()
    with pytest.raises(RuntimeError, match="another server keeps its videos in"):
        serve()
