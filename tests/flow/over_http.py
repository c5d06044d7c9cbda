"""What the tests of the HTTP surface share: asking for speech, reading metrics, waiting for one to say something."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from streamsynth.codecs.quantise import to_s16
from streamsynth.testing.server_process import ServerProcess
from streamsynth.testing.sine import sine

SPEECH = "/v1/audio/speech"
SAMPLES_PER_CHARACTER = 1200
CHUNK_SAMPLES = 1920


def tone(samples: int) -> npt.NDArray[np.int16]:
    """What the sine engine says in so many samples, as pcm."""
    return to_s16(sine(0, samples))


async def speak(http: aiohttp.ClientSession, **fields: Any) -> tuple[int, aiohttp.typedefs.LooseHeaders, bytes]:
    """Status, headers and the whole body of one speech request."""
    async with http.post(SPEECH, json=fields) as answer:
        return answer.status, answer.headers, await answer.read()


async def refused(http: aiohttp.ClientSession, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Status and error of a speech request that must not succeed."""
    async with http.post(SPEECH, json=fields) as answer:
        return answer.status, (await answer.json())["error"]


async def close(writer: asyncio.StreamWriter) -> None:
    """End a bare connection, and return when it is gone: left to the collector it is a warning in another test."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def metrics(http: aiohttp.ClientSession) -> dict[str, float]:
    async with http.get("/metrics") as answer:
        text = await answer.text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def until_metrics(
    http: aiohttp.ClientSession, reached: Callable[[dict[str, float]], bool], timeout_s: float = 10.0
) -> dict[str, float]:
    """Ask again until the metrics say so: another process changes them, and no event tells this one."""
    async with asyncio.timeout(timeout_s):
        while not reached(values := await metrics(http)):
            await asyncio.sleep(0.01)
    return values


def quiet(values: dict[str, float]) -> bool:
    """Nothing runs, waits or is being made."""
    return not any(values[f"streamsynth_{name}"] for name in ("running", "queued", "live_flows"))


async def draining(http: aiohttp.ClientSession) -> None:
    """Returns once the server says that it is shutting down."""
    async with asyncio.timeout(5):
        while True:
            async with http.get("/ready") as answer:
                if (await answer.json())["status"] == "shutting_down":
                    return
            await asyncio.sleep(0.01)


async def ended(server: ServerProcess) -> str:
    """Its log, once the process has ended by itself."""
    async with asyncio.timeout(10):
        while server.running:
            await asyncio.sleep(0.01)
    return server.log()
