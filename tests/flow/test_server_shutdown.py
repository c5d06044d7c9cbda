"""The end of the server: running speech finishes, new work is refused, and what takes too long is cut."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import aiohttp
import numpy as np
import pytest
from over_http import SAMPLES_PER_CHARACTER, SPEECH, draining, ended, speak, tone, until_metrics


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP])
async def test_running_speech_finishes_and_new_work_is_refused(serve_process: Any, told: signal.Signals) -> None:
    """T7.3: while a client listens; a terminal that closes is a SIGHUP."""
    server = serve_process("--model", "sine")
    text = "{delay 30}" + "x" * 40
    async with aiohttp.ClientSession(server.url) as http:
        async with http.post(SPEECH, json={"input": text, "response_format": "pcm"}) as streaming:
            os.kill(server.pid, told)
            await draining(http)
            async with http.post(SPEECH, json={"input": "abc"}) as answer:
                assert answer.status == 503
                assert int(answer.headers["Retry-After"]) >= 1
                assert (await answer.json())["error"]["code"] == "shutting_down"
            async with http.get("/health") as answer:
                assert answer.status == 200
            body = await streaming.read()
        assert np.array_equal(np.frombuffer(body, "<i2"), tone(40 * SAMPLES_PER_CHARACTER))
    assert "Traceback" not in await ended(server)
    assert server.stop() == 0


@pytest.mark.parametrize("workers_first", [True, False])
async def test_a_signal_to_every_process_of_the_service_drains_like_one_to_the_server(
    serve_process: Any, workers_first: bool
) -> None:
    """T7.6: as systemd stops a service unless told otherwise. The stream is whole, and the exit status is 0."""
    server = serve_process("--model", "sine")
    asked = {"input": "{delay 30}" + "x" * 40, "response_format": "pcm"}
    async with aiohttp.ClientSession(server.url) as http, http.post(SPEECH, json=asked) as streaming:
        workers = server.worker_pids()
        assert workers
        for pid in (*workers, server.pid) if workers_first else (server.pid, *workers):
            os.kill(pid, signal.SIGTERM)
        body = await streaming.read()
    assert np.array_equal(np.frombuffer(body, "<i2"), tone(40 * SAMPLES_PER_CHARACTER))
    log = await ended(server)
    assert "Traceback" not in log
    assert "died" not in log
    assert server.stop() == 0


def test_a_worker_that_is_stopped_ends_with_a_server_that_is_killed(serve_process: Any) -> None:
    """T7.10: it cannot see its socket end. `serve_process` asserts that nothing is left."""
    server = serve_process("--model", "sine")
    (worker,) = server.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    server.kill()
    assert server.orphans == 0


async def test_what_does_not_finish_in_time_is_cut(serve_process: Any) -> None:
    """A stream breaks off, a request without a first byte gets its 503, and the process ends."""
    server = serve_process("--model", "sine", "--limit", "drain_s=0.3")
    async with aiohttp.ClientSession(server.url) as http:
        async with http.post(SPEECH, json={"input": "{stall 3} and no more", "response_format": "pcm"}) as streaming:
            silent = asyncio.create_task(speak(http, input="{stall 0} abc"))
            await until_metrics(http, lambda values: values["streamsynth_live_flows"] == 2)
            os.kill(server.pid, signal.SIGTERM)
            with pytest.raises(aiohttp.ClientPayloadError):
                await streaming.read()
        status, _, body = await silent
        assert (status, b'"shutting_down"' in body) == (503, True)
    assert "Traceback" not in await ended(server)
    assert server.stop() == 0


async def test_a_second_signal_does_not_wait(serve_process: Any) -> None:
    server = serve_process("--model", "sine")
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post(SPEECH, json={"input": "{stall 3} and no more", "response_format": "pcm"}) as streaming,
    ):
        os.kill(server.pid, signal.SIGTERM)
        await draining(http)
        os.kill(server.pid, signal.SIGINT)
        with pytest.raises(aiohttp.ClientPayloadError):
            await streaming.read()
    assert "Traceback" not in await ended(server)
    assert server.stop() == 0


def test_a_port_in_use_ends_the_start_with_one_line(serve_process: Any) -> None:
    """T7.1 of the start: all or nothing, and the message names the address."""
    first = serve_process("--model", "sine")
    port = first.url.rpartition(":")[2]
    with pytest.raises(RuntimeError, match=rf"cannot listen on 127\.0\.0\.1:{port}") as caught:
        serve_process("--model", "sine", "--port", port)
    assert "Traceback" not in str(caught.value)
