"""More than the server can take: it queues, refuses with a time to come back, and never falls over."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from over_http import SPEECH, close, quiet, refused, speak, until_metrics

from streamsynth.realtime.fields import HINTS, HTTP_ONLY, SOCKET_ONLY, SPEECH_FIELDS
from streamsynth.testing.server_process import ServerProcess

RUNNING, QUEUED = 2, 2
KEYS = ("ann", "ben")


@pytest.fixture(scope="module")
def server(shared_serve_process: Any) -> ServerProcess:
    limits = {
        "running_utterances": RUNNING,
        "queued_utterances": QUEUED,
        "key_share": 1.0,
        "sessions": 2,
        "body_s": 0.3,
    }
    flags = [flag for name, value in limits.items() for flag in ("--limit", f"{name}={value}")]
    started: ServerProcess = shared_serve_process("--model", "sine", *flags, "--limit", "connections=40")
    return started


@pytest_asyncio.fixture
async def http(server: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


def address(server: ServerProcess) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


async def test_a_burst_is_queued_then_refused_and_then_served(http: aiohttp.ClientSession) -> None:
    """S54, S21: four times the capacity at once; the queue is bounded and the refusals say when to come back."""
    async with contextlib.AsyncExitStack() as stalled:
        for _ in range(RUNNING):
            asked = {"input": "{stall 1} abc", "response_format": "pcm"}
            await stalled.enter_async_context(http.post(SPEECH, json=asked))
        waiting = [asyncio.create_task(speak(http, input="abc", response_format="pcm")) for _ in range(QUEUED)]
        await until_metrics(http, lambda values: values["streamsynth_queued"] == QUEUED)
        for _ in range(4 * RUNNING):
            async with http.post(SPEECH, json={"input": "abc"}) as answer:
                assert answer.status == 429
                assert int(answer.headers["Retry-After"]) >= 1
                assert (await answer.json())["error"]["code"] == "overloaded"
        async with http.get("/health") as health, http.get("/ready") as ready:
            assert (health.status, ready.status) == (200, 200)
    assert [status for status, _, _ in await asyncio.gather(*waiting)] == [200] * QUEUED
    await until_metrics(http, quiet)


async def test_a_client_that_leaves_while_it_waits_frees_its_place(http: aiohttp.ClientSession) -> None:
    """S25, S33: also while queued; its text is never spoken."""
    async with contextlib.AsyncExitStack() as stalled:
        for _ in range(RUNNING):
            await stalled.enter_async_context(
                http.post(SPEECH, json={"input": "{stall 1} abc", "response_format": "pcm"})
            )
        waiting = asyncio.create_task(speak(http, input="abc", response_format="pcm"))
        values = await until_metrics(http, lambda values: values["streamsynth_queued"] == 1)
        assert values["streamsynth_live_flows"] == RUNNING
        waiting.cancel()
        await until_metrics(http, lambda values: values["streamsynth_queued"] == 0)
    await until_metrics(http, quiet)


async def test_sockets_beyond_the_limit_are_refused_at_the_handshake(http: aiohttp.ClientSession) -> None:
    stream = "/v1/audio/speech/stream"
    async with http.ws_connect(stream), http.ws_connect(stream):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.ws_connect(stream)
        assert caught.value.status == 429
        assert caught.value.headers is not None and int(caught.value.headers["Retry-After"]) >= 1
        async with http.ws_connect(stream, protocols=("streamsynth",)) as told:
            assert json.loads((await told.receive()).data)["code"] == "overloaded"
            assert (await told.receive()).data == 1013
    await until_metrics(http, lambda values: values["streamsynth_sessions"] == 0)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_above_6_mib_is_refused(http: aiohttp.ClientSession, chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(7):
            yield b"x" * 2**20

    async with http.post(SPEECH, data=pieces() if chunked else io.BytesIO(b"x" * (6 * 2**20 + 1))) as answer:
        assert answer.status == 413
        error = (await answer.json())["error"]
        assert (error["code"], "6291456" in error["message"]) == ("message_too_large", True)


async def test_a_body_that_announces_too_much_is_refused_before_it_comes(server: ServerProcess) -> None:
    reader, writer = await asyncio.open_connection(*address(server))
    writer.write(b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (SPEECH.encode(), 10**12))
    async with asyncio.timeout(5):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    await close(writer)


async def test_a_compressed_body_is_measured_when_it_is_unpacked(http: aiohttp.ClientSession) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    async with http.post(SPEECH, data=bomb, headers={"Content-Encoding": "gzip"}) as answer:
        assert answer.status == 413
    async with http.post(SPEECH, data=b"not gzip", headers={"Content-Encoding": "gzip"}) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_a_body_that_does_not_come_is_given_up(server: ServerProcess) -> None:
    reader, writer = await asyncio.open_connection(*address(server))
    writer.write(b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b'"idle_timeout"' in await reader.read(1000)
    await close(writer)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/audio/speech/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nExpect: magic\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_malformed_requests_get_a_typed_answer_and_no_traceback(server: ServerProcess, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address(server))
    writer.write(sent)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.0 4", b"HTTP/1.1 4"))
    assert (await reader.read(10_000)).startswith(b'{"error"')
    await close(writer)
    assert "Traceback" not in server.log()


async def test_a_client_that_asks_first_is_told_to_go_on(server: ServerProcess) -> None:
    reader, writer = await asyncio.open_connection(*address(server))
    body = b'{"input": "ab", "response_format": "pcm"}'
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(body))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    await close(writer)


async def test_connections_beyond_the_limit_are_told_and_closed(server: ServerProcess) -> None:
    open_ones = [await asyncio.open_connection(*address(server)) for _ in range(40)]
    reader, writer = await asyncio.open_connection(*address(server))
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1" in answer
    for _, each in [*open_ones, (reader, writer)]:
        await close(each)


async def test_no_key_can_take_the_places_of_another(serve_process: Any) -> None:
    server = serve_process(
        *("--model", "sine", "--limit", "running_utterances=2", "--limit", "queued_utterances=2"),
        env={"STREAMSYNTH_API_KEYS": ",".join(KEYS)},
    )
    ann, ben = ({"Authorization": f"Bearer {key}"} for key in KEYS)
    asked = {"input": "{stall 1} abc", "response_format": "pcm"}
    async with (
        aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0), headers=ben) as http,
        http.post(SPEECH, json=asked, headers=ann) as held,
    ):
        assert held.status == 200
        waiting = asyncio.create_task(speak_as(http, ann))
        await until_metrics(http, lambda values: values["streamsynth_queued"] == 1)
        async with http.post(SPEECH, json=asked, headers=ann) as answer:
            assert answer.status == 429
            assert "its share" in (await answer.json())["error"]["message"]
        assert (await speak(http, input="abc"))[0] == 200
        assert not waiting.done()
        held.close()
        assert await waiting == 200


async def speak_as(http: aiohttp.ClientSession, key: dict[str, str]) -> int:
    async with http.post(SPEECH, json={"input": "abc"}, headers=key) as answer:
        await answer.read()
        return answer.status


_ANY = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20)
_LIKELY = st.sampled_from(["wav", "pcm", "sse", "audio", "sine", "alloy", 0.5, 1, 24_000, True, "7"])
_NAMES = st.sampled_from(sorted(SPEECH_FIELDS | HINTS.keys() | HTTP_ONLY | SOCKET_ONLY | {"ref_audio"})) | st.text()


@given(fields=st.dictionaries(_NAMES, _ANY | _LIKELY | st.lists(_ANY, max_size=2), max_size=6), spoken=st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_fields_get_audio_or_a_typed_error(server: ServerProcess, fields: dict[str, Any], spoken: bool) -> None:
    """T7.9, S68: every field, every type: a 200 that is speech, or a 4xx that names the field; never a 500."""
    body = {**fields, "input": "ab"} if spoken else fields

    async def ask() -> None:
        async with aiohttp.ClientSession(server.url) as http, http.post(SPEECH, data=json.dumps(body)) as answer:
            if answer.status == 200:
                assert answer.headers["Content-Type"].startswith(("audio/", "text/event-stream"))
                await answer.read()
            else:
                assert answer.status in (400, 404)
                assert (await answer.json())["error"]["code"]

    asyncio.run(ask())
    assert "Traceback" not in server.log()


async def test_the_server_is_whole_after_all_of_this(http: aiohttp.ClientSession) -> None:
    await until_metrics(http, quiet)
    assert (await speak(http, input="abc"))[0] == 200
    assert (await refused(http, input="abc", nothing=1))[1]["code"] == "unknown_field"
