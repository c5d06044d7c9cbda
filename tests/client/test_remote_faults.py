"""What the remote half of the Python API makes of servers and connections that fail."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from scripted_server import Scripted, scripted_server
from websockets.asyncio.server import serve

from streamsynth import ErrorCode, StreamSynth, StreamSynthError, remote, remote_socket
from streamsynth.graph.flow import Status
from streamsynth.testing.faults import FaultyLink
from streamsynth.testing.server_process import ServerProcess


async def listen(url: str, text: str = "abc") -> list[int]:
    async with StreamSynth.connect(url) as synth:
        return [len(chunk.samples) async for chunk in synth.speak(text)]


async def failure(work: Awaitable[Any]) -> StreamSynthError:
    with pytest.raises(StreamSynthError) as caught:
        await work
    return caught.value


async def failure_of(script: Callable[[Scripted], Awaitable[None]]) -> StreamSynthError:
    async with scripted_server(script) as (url, _), asyncio.timeout(10):
        return await failure(listen(url))


async def flushed(server: Scripted, **limits: float) -> None:
    await server.configure(**limits)
    await server.receive_until("input.done")


async def test_messages_and_fields_of_a_newer_server_are_ignored() -> None:
    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.send("audio.start.of.something", depth=3)
        await server.start()
        await server.send("audio.loudness", db=-20)
        await server.send_audio(b"\0\1" * 5)
        await server.done(5)

    async with scripted_server(script) as (url, _):
        assert await listen(url) == [5, 0, 0]


async def test_s16_is_read_at_full_scale() -> None:
    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.start()
        await server.send_audio(np.array([0, 16384, -32768, 32767], "<i2").tobytes())
        await server.done(4)

    async with scripted_server(script) as (url, _), StreamSynth.connect(url) as synth:
        chunk = await anext(synth.speak("abc"))
        assert chunk.samples.tolist() == [0.0, 0.5, -1.0, 32767 / 32768]


async def test_a_total_that_differs_from_what_came_is_an_error() -> None:
    """S24: who counts what arrives notices what is missing."""

    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.start()
        await server.send_audio(b"\0\1" * 5)
        await server.done(6)
        await server.receive()

    error = await failure_of(script)
    assert (error.code, error.message) == (ErrorCode.INTERNAL_ERROR, "the server counted 6 samples, 5 arrived")


async def test_half_a_sample_is_an_error() -> None:
    """S7."""

    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.start()
        await server.send_audio(b"\0\1\2")
        await server.receive()

    assert (await failure_of(script)).code is ErrorCode.INTERNAL_ERROR


@pytest.mark.parametrize("message", ["not json", "[]", '{"type": "session.done"}', b"\0\0"])
async def test_what_is_no_message_is_an_error(message: str | bytes) -> None:
    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.socket.send(message)
        await server.receive()

    assert (await failure_of(script)).code is ErrorCode.INTERNAL_ERROR


@pytest.mark.parametrize(
    ("close_code", "reason", "code"),
    [
        (1000, "", ErrorCode.CONNECTION_FAILED),
        (1001, "the server is shutting down", ErrorCode.SHUTTING_DOWN),
        (1008, "forbidden: not from here", ErrorCode.FORBIDDEN),
        (1009, "", ErrorCode.MESSAGE_TOO_LARGE),
        (1011, "", ErrorCode.INTERNAL_ERROR),
        (1013, "", ErrorCode.OVERLOADED),
        (4000, "idle_timeout: no message for 60 s", ErrorCode.IDLE_TIMEOUT),
        (4002, "", ErrorCode.STALLED_READER),
        (4999, "a newer code", ErrorCode.CONNECTION_FAILED),
    ],
)
async def test_the_close_frame_ends_what_is_unfinished(close_code: int, reason: str, code: ErrorCode) -> None:
    """SP-7."""

    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.start()
        await server.send_audio(b"\0\1" * 5)
        await server.socket.close(close_code, reason)

    assert (await failure_of(script)).code is code


async def test_what_came_before_the_end_can_still_be_read() -> None:
    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.start()
        await server.send_audio(b"\0\1" * 5)
        server.socket.transport.abort()

    async with scripted_server(script) as (url, _), StreamSynth.connect(url) as synth:
        speech = synth.speak("abc")
        assert len((await anext(speech)).samples) == 5
        error = await failure(anext(speech))
    assert (error.code, error.message) == (ErrorCode.CONNECTION_FAILED, "the connection to the server was lost")


async def test_a_fatal_error_is_the_reason_for_the_close_that_follows() -> None:
    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.send("error", code="worker_died", message="killed by signal 9", fatal=True)
        await server.socket.close(1011, "")

    error = await failure_of(script)
    assert (error.code, error.message) == (ErrorCode.WORKER_DIED, "killed by signal 9")


async def test_an_error_code_of_a_newer_server_is_an_internal_error_with_its_words() -> None:
    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.send("error", code="too_purple", message="too purple", fatal=False, utterance_index=0)
        await server.session_done(0, status="failed")
        await server.receive()

    error = await failure_of(script)
    assert (error.code, error.message) == (ErrorCode.INTERNAL_ERROR, "too purple")


async def test_a_text_that_the_server_finds_too_long_is_not_spoken_in_part() -> None:
    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.send("error", code="text_too_long", message="too long", fatal=False, utterance_index=0)
        await server.receive_until("input.cancel")
        await server.session_done(0, status="cancelled")
        await server.receive()

    assert (await failure_of(script)).code is ErrorCode.TEXT_TOO_LONG


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (401, b'{"error": {"code": "unauthorized", "message": "a key"}}', ErrorCode.UNAUTHORIZED, "a key"),
        (429, b'{"error": {"code": "overloaded", "message": "full"}}', ErrorCode.OVERLOADED, "full"),
        (503, b"<html>", ErrorCode.SHUTTING_DOWN, "the server refused the connection: HTTP 503 Service Unavailable"),
        (418, b"{}", ErrorCode.CONNECTION_FAILED, "the server refused the connection: HTTP 418 I'm a Teapot"),
    ],
)
async def test_a_refused_handshake_says_why(status: int, body: bytes, code: ErrorCode, message: str) -> None:
    def refuse(connection: Any, request: Any) -> Any:
        response = connection.respond(http.HTTPStatus(status), body.decode())
        response.headers["Retry-After"] = "3"
        return response

    async with serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0, process_request=refuse) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        error = await failure(listen(f"http://127.0.0.1:{port}"))
    assert (error.code, error.message, error.retry_after_ms) == (code, message, 3000)


async def test_no_server_is_a_typed_error() -> None:
    async with scripted_server(flushed) as (url, _):
        pass
    assert (await failure(listen(url))).code is ErrorCode.CONNECTION_FAILED


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT_S", 0.05)

    async def script(server: Scripted) -> None:
        await server.receive_until("session.config")
        await server.receive()

    error = await failure_of(script)
    assert (error.code, error.message) == (ErrorCode.CONNECTION_FAILED, "the server did not answer within 0.05 s")


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://x", "http://", "/path", "http://h:65536", "http://h:0", "http://h:x", "http://[::1"],
)
def test_an_address_that_cannot_be_is_refused_at_once(url: str) -> None:
    with pytest.raises(StreamSynthError, match="url is") as caught:
        StreamSynth.connect(url)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "url")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1", "ws://h:1/v1/audio/speech/stream"),
        ("https://h/", "wss://h/v1/audio/speech/stream"),
        ("wss://h/voice/v1/", "wss://h/voice/v1/audio/speech/stream"),
    ],
)
def test_the_address_of_a_server_leads_to_its_speech_route(url: str, expected: str) -> None:
    assert remote_socket.socket_url(url) == expected


async def test_a_long_text_arrives_whole_in_messages_that_a_server_takes() -> None:
    text = 'a "quoted" \u0001 \U0001f642 word\n' * 2000

    async def script(server: Scripted) -> None:
        await flushed(server)
        await server.session_done(0)
        await server.receive()

    async with scripted_server(script) as (url, connections):
        assert await listen(url, text) == [0]
    pieces = [message["text"] for message in connections[0].received if message["type"] == "input.text"]
    assert "".join(pieces) == text
    assert max(6 * len(piece) for piece in pieces) < 128 * 1024


async def test_what_nobody_reads_is_not_taken_from_the_server() -> None:
    """S36, from the client's side: memory stays bounded, and the server feels it."""
    sent = 0

    async def script(server: Scripted) -> None:
        nonlocal sent
        await flushed(server)
        await server.start()
        for _ in range(10_000):
            await server.send_audio(bytes(48_000))
            sent += 1

    async with scripted_server(script) as (url, _), StreamSynth.connect(url) as synth:
        speech = synth.speak("abc")
        await anext(speech)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        (session,) = synth._sessions
        connection = session._connection
        assert isinstance(connection, remote.RemoteConnection)
        assert connection._unread_ns <= remote.MAX_UNREAD_NS + 1_000_000_000
        for _ in range(sent):
            await anext(speech)
        assert sent > before


async def test_an_open_session_is_kept_alive() -> None:
    """S56: the owner holds it open, so the server must not think it idle."""
    pinged = asyncio.Event()

    async def script(server: Scripted) -> None:
        await server.configure(idle_s=0.03)
        await server.receive_until("session.ping")
        pinged.set()
        await server.receive_until("session.ping")

    async with scripted_server(script) as (url, _), StreamSynth.connect(url) as synth, synth.speech_session():
        async with asyncio.timeout(5):
            await pinged.wait()


async def test_a_server_that_says_nothing_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "KEEP_ALIVE_S", 0.02)
    monkeypatch.setattr(remote, "DEAD_PEER_S", 0.05)

    async def script(server: Scripted) -> None:
        await flushed(server)
        while True:
            await server.receive()

    error = await failure_of(script)
    assert (error.code, error.message) == (ErrorCode.CONNECTION_FAILED, "nothing was heard of the server for 0.05 s")


async def test_a_broken_link_ends_the_speech_and_nothing_else(serve_process: Callable[..., ServerProcess]) -> None:
    """S25, S28: the server lets go of what was being made, and the next session works."""
    port = int(serve_process("--model", "sine").url.rpartition(":")[2])
    async with FaultyLink(port) as link:
        url = f"http://127.0.0.1:{link.port}"
        async with StreamSynth.connect(url) as synth:
            async with synth.speech_session() as session:
                await session.send("{delay 30}Hello there.")
                utterance = await session.flush()
                chunks = aiter(utterance)
                await anext(chunks)
                await link.drop()
                error = await failure(_rest(chunks))
                assert (error.code, utterance.status) == (ErrorCode.CONNECTION_FAILED, Status.FAILED)
                assert (await failure(session.send("more"))).code is ErrorCode.CONNECTION_FAILED
            assert sum(await listen(url)) == 3 * 1200


async def _rest(chunks: Any) -> None:
    async for _ in chunks:
        pass


async def test_keys_are_sent_and_asked_for(serve_process: Callable[..., ServerProcess]) -> None:
    url = serve_process("--model", "sine", env={"STREAMSYNTH_API_KEYS": "c2VjcmV0"}).url
    assert (await failure(listen(url))).code is ErrorCode.UNAUTHORIZED
    async with StreamSynth.connect(url, api_key="c2VjcmV0") as synth:
        assert sum([len(chunk.samples) async for chunk in synth.speak("abc")]) == 3 * 1200
