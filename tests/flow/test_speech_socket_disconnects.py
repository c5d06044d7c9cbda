"""Clients that vanish, against the real server process: at every stage of a session, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from over_http import quiet, until_metrics
from over_socket import PCM, RawClient, frame, kinds, last, speaking, until

from streamsynth.testing.server_process import ServerProcess

WHOLE = ["audio.start", "audio", "audio.done", "session.done"]
LONG = "{delay 5}" + "x" * 2000


@pytest.fixture(scope="module")
def server(shared_serve_process: Any) -> ServerProcess:
    started: ServerProcess = shared_serve_process("--model", "sine")
    return started


@pytest_asyncio.fixture
async def left_behind(server: ServerProcess) -> AsyncIterator[Callable[[], Any]]:
    """Waits until the server holds no session and no flow, and shows its metrics."""
    async with aiohttp.ClientSession(server.url) as http:

        async def wait() -> dict[str, float]:
            return await until_metrics(http, lambda values: quiet(values) and not values["streamsynth_sessions"])

        yield wait
        await wait()
    assert "Traceback" not in server.log()


async def stage_of_a_session(client: RawClient, stage: str) -> None:
    if stage == "handshake":
        return
    await client.send("session.config", **PCM)
    if stage == "half a message":
        await client.send_bytes(frame(b'{"type":"input.text","text":"' + b"x" * 500)[:200])
        return
    await client.send("input.text", text="{stall 0}x" if stage == "before audio" else LONG)
    if stage == "open":
        return
    await client.send("input.done")
    if stage == "queued":
        await client.send("input.text", text=LONG)
        await client.send("input.done")
    if stage in ("speaking", "queued", "cancelled"):
        await client.read(3000)
    if stage == "cancelled":
        await client.send("input.cancel")


STAGES = ["handshake", "half a message", "open", "before audio", "speaking", "queued", "cancelled"]


@pytest.mark.parametrize("how", ["vanishes", "half-closes", "closes"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_client_that_goes_leaves_nothing(
    server: ServerProcess, left_behind: Callable[[], Any], stage: str, how: str
) -> None:
    """SP-8, S25, S27: by a reset, by a shutdown of its side, by a closed socket."""
    with await RawClient.open(server.url) as client:
        await stage_of_a_session(client, stage)
        if how == "vanishes":
            client.vanish()
        if how == "half-closes":
            client.half_close()
            await client.read_all()


async def test_the_engine_stops_when_its_client_goes(server: ServerProcess, left_behind: Callable[[], Any]) -> None:
    """S25: counted as cancelled, and measured down to the worker."""
    before = await left_behind()
    with await RawClient.open(server.url) as client:
        await stage_of_a_session(client, "speaking")
        client.vanish()
    after = await left_behind()
    cancelled = 'streamsynth_utterances_total{model="sine",status="cancelled",surface="socket"}'
    assert after[cancelled] == before.get(cancelled, 0) + 1
    assert after["streamsynth_cancel_to_idle_seconds_count"] > before["streamsynth_cancel_to_idle_seconds_count"]


async def test_departures_at_random_moments_disturb_no_other_session(
    server: ServerProcess, left_behind: Callable[[], Any]
) -> None:
    """S28, S29: 200 of them, while two sessions speak on."""
    chance = random.Random(4)

    async def leave() -> None:
        with await RawClient.open(server.url) as client:
            await client.send_bytes(frame(b'{"type":"session.config","response_format":"mp3","stream_audio":true}'))
            await client.send("input.text", text="x" * 300)
            if chance.random() < 0.8:
                await client.send("input.done")
            await asyncio.sleep(chance.uniform(0, 0.05))
            if chance.random() < 0.3:
                await client.send("input.cancel")
            client.vanish()

    async def stay() -> None:
        async with speaking(server.url, **PCM) as client:
            for _ in range(20):
                assert kinds(await client.speak("x" * 30)) == WHOLE

    async with asyncio.TaskGroup() as group:
        group.create_task(stay())
        group.create_task(stay())
        for _ in range(10):
            await asyncio.gather(*(leave() for _ in range(20)))


async def test_the_terminal_event_of_everything_is_the_close_frame(serve_process: Any) -> None:
    """A server that is told to stop finishes what speaks, and closes every socket with 1001."""
    server = serve_process("--model", "sine")
    async with speaking(server.url, **PCM) as busy, speaking(server.url, **PCM) as idle:
        await idle.send("session.ping")
        await idle.until("session.pong")
        await busy.text("{delay 20}finish me")
        await busy.flush()
        events = await busy.until("audio")
        os.kill(server.pid, signal.SIGTERM)
        events += (await busy.closed())[0]
        assert kinds(events) == WHOLE
        assert last(events)["status"] == "completed"
        assert busy.websocket.close_code == 1001
        assert (await idle.closed())[1] == 1001
    await until(lambda: not server.running)
    assert server.stop() == 0
