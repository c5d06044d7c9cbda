"""What the tests of `/v1/videos` share: asking, waiting for a job, and reading what is in its file."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import aiohttp
import av

from streamsynth.testing.paint import Painted, read_picture

VIDEOS = "/v1/videos"
SMALL = {"size": "128x128"}
Job = dict[str, Any]


async def create(http: aiohttp.ClientSession, prompt: str = "red", **fields: Any) -> Job:
    async with http.post(VIDEOS, json={"prompt": prompt, **SMALL, **fields}) as answer:
        assert answer.status == 200, await answer.text()
        job: Job = await answer.json()
    return job


async def show(http: aiohttp.ClientSession, job_id: str) -> Job:
    async with http.get(f"{VIDEOS}/{job_id}") as answer:
        assert answer.status == 200, await answer.text()
        job: Job = await answer.json()
    return job


async def until(http: aiohttp.ClientSession, job_id: str, reached: Callable[[Job], bool], timeout_s: float = 20) -> Job:
    """Ask again until the job says so: another process changes it, and no event tells this one."""
    async with asyncio.timeout(timeout_s):
        while not reached(job := await show(http, job_id)):
            await asyncio.sleep(0.01)
    return job


def finished(job: Job) -> bool:
    return job["status"] in ("completed", "failed")


async def refusal(http: aiohttp.ClientSession, method: str, path: str, **options: Any) -> tuple[int, str, str | None]:
    """Status, code and param of a request that must not succeed."""
    async with http.request(method, path, **options) as answer:
        error = (await answer.json())["error"]
        return answer.status, error["code"], error["param"]


async def content(http: aiohttp.ClientSession, job_id: str) -> bytes:
    async with http.get(f"{VIDEOS}/{job_id}/content") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.read()


def pictures(data: bytes) -> list[Painted]:
    with av.open(io.BytesIO(data)) as container:
        return [read_picture(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def frames(data: bytes) -> list[int]:
    return [painted.frame for painted in pictures(data)]
