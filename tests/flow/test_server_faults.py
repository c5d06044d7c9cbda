"""What breaks behind the server: workers that die, stall or lie, and clients that come and go at random."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from over_http import SPEECH, quiet, refused, speak, until_metrics

from streamsynth.testing.faults import find_workers, kill_worker
from streamsynth.testing.server_process import ServerProcess

LONG = "{delay 20}" + "x" * 2000


@pytest.fixture(scope="module")
def server(shared_serve_process: Any) -> ServerProcess:
    started: ServerProcess = shared_serve_process("--model", "sine")
    return started


@pytest_asyncio.fixture
async def http(server: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def ready(http: aiohttp.ClientSession) -> tuple[int, dict[str, str]]:
    async with http.get("/ready") as answer:
        return answer.status, (await answer.json())["stages"]


async def test_random_departures_harm_nobody(http: aiohttp.ClientSession, server: ServerProcess) -> None:
    """S25, S28, S29: requests of every kind are left at every moment; the server stays whole and its log clean."""
    chance = random.Random(1)

    async def come_and_go() -> None:
        fields = {
            "input": chance.choice(["{delay 3}", "{stall 0}", "{stall 2}", "{fail 3}", ""])
            + "x" * chance.randint(1, 300),
            "response_format": chance.choice(["pcm", "wav", "mp3", "opus", "aac", "flac"]),
            "stream_format": chance.choice(["audio", "sse", None]),
        }
        try:
            async with asyncio.timeout(chance.uniform(0, 0.1)):
                await speak(http, **fields)
        except (TimeoutError, aiohttp.ClientError):
            pass

    for _ in range(10):
        await asyncio.gather(*(come_and_go() for _ in range(20)))
    await until_metrics(http, quiet)
    assert (await speak(http, input="abc", response_format="pcm"))[0] == 200
    assert "Traceback" not in server.log()
    assert len(find_workers(server.pid)) == 1


async def test_a_killed_worker_fails_its_speech_and_is_replaced(
    http: aiohttp.ClientSession, server: ServerProcess
) -> None:
    """T7.2, T7.11: streams break off, waiting requests get a 503, readiness says why, then all is well again."""
    (pid,) = find_workers(server.pid)
    asked = {"input": LONG, "response_format": "pcm"}
    async with (
        http.post(SPEECH, json=asked) as streaming,
        http.post(SPEECH, json={**asked, "stream_format": "sse"}) as events,
    ):
        assert (streaming.status, events.status) == (200, 200)
        waiting = asyncio.create_task(refused(http, input="{stall 0} abc"))
        await until_metrics(http, lambda values: values["streamsynth_live_flows"] == 3)
        await asyncio.to_thread(kill_worker, pid)
        with pytest.raises(aiohttp.ClientPayloadError):
            await streaming.read()
        status, error = await waiting
        assert (status, error["code"]) == (503, "worker_died")
        assert b'"speech.audio.error"' in await events.read()
    async with asyncio.timeout(10):
        while (await ready(http))[0] != 200:
            await asyncio.sleep(0.01)
    assert (await speak(http, input="abc"))[0] == 200
    await until_metrics(http, quiet)
    assert find_workers(server.pid) != [pid]


async def test_a_worker_that_makes_nothing_is_a_typed_error_and_others_go_on(serve_process: Any) -> None:
    """S55: one degenerate request ends alone; the others and the loop do not notice."""
    server = serve_process("--model", "sine", "--set", "tone.stall_timeout_s=0.5")
    async with aiohttp.ClientSession(server.url) as http:
        stuck = asyncio.create_task(refused(http, input="{stall 0} abc"))
        late = asyncio.create_task(
            speak(http, input="{stall 2} abcdefghijklmno", response_format="pcm", stream_format="sse")
        )
        status, error = await stuck
        assert (status, error["code"]) == (503, "stalled_engine")
        assert b'"stalled_engine"' in (await late)[2]
        assert (await speak(http, input="abc"))[0] == 200
        await until_metrics(http, quiet)


async def test_an_engine_at_another_rate_than_declared_is_an_error(serve_process: Any) -> None:
    """S9: never low and slow."""
    server = serve_process("--model", "sine", "--set", "tone.sample_rate=12000")
    async with aiohttp.ClientSession(server.url) as http:
        for name in ("pcm", "mp3"):
            status, error = await refused(http, input="abc", response_format=name)
            assert (status, error["code"]) == (500, "engine_failed")
            assert "12000" in error["message"] and "24000" in error["message"]


async def test_readiness_names_the_stage_that_makes_no_progress(http: aiohttp.ClientSession) -> None:
    """S55: the loop answers all the while; readiness follows the engine, and comes back with it."""
    stuck = asyncio.create_task(speak(http, input="{stall 0} abc"))
    async with asyncio.timeout(15):
        while (state := await ready(http))[0] == 200:
            async with http.get("/health") as answer:
                assert answer.status == 200
            await asyncio.sleep(0.05)
    assert state[0] == 503
    assert list(state[1]) == ["sine.tone"]
    assert "no progress" in state[1]["sine.tone"]
    stuck.cancel()
    async with asyncio.timeout(15):
        while (await ready(http))[0] != 200:
            await asyncio.sleep(0.05)
