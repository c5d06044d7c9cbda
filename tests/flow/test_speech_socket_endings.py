"""How speech sockets end: clocks, closes, garbage, faults. Limits are short here; each test has its own server."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from typing import Any

import pytest
from over_socket import PCM, RawClient, SpeechClient, audio, frame, kinds, last, serving, speaking, until

from streamsynth.realtime.keys import DRAINING
from streamsynth.testing.faults import kill_worker

WHOLE = ["audio.start", "audio", "audio.done", "session.done"]


async def fatal_and_closed(client: SpeechClient) -> tuple[str, int]:
    """The code of the one fatal error that must be the last message, and of the close frame behind it."""
    events, code, reason = await client.closed()
    error = last(events)
    assert (error["type"], error["fatal"]) == ("error", True)
    assert reason.startswith(error["code"] + ": ")
    return error["code"], code


async def test_a_session_without_a_config_is_closed() -> None:
    async with serving(first_message_s=0.2) as server:
        async with speaking(server.url, configured=False) as client:
            await client.send("input.text", text="x")
            await client.send("session.config", voice="nobody")
            assert [last([await client.next()])["code"] for _ in range(2)] == ["config_required", "voice_not_found"]
            assert await fatal_and_closed(client) == ("no_first_message", 4001)
        await server.empty()


async def test_an_idle_session_is_closed_and_a_ping_message_keeps_it() -> None:
    """SP-9, S31, S56: pings of the WebSocket protocol do not count."""
    async with serving(idle_s=0.6) as server:
        async with speaking(server.url, **PCM) as client:
            for _ in range(4):
                await asyncio.sleep(0.3)
                await client.send("session.ping")
                assert kinds([await client.next()]) == ["session.pong"]
            for _ in range(3):
                await (await client.websocket.ping())
            assert await fatal_and_closed(client) == ("idle_timeout", 4000)
        await server.empty()


async def test_a_session_that_speaks_or_is_open_is_not_idle() -> None:
    async with serving(idle_s=0.2) as server, speaking(server.url, **PCM) as client:
        await client.text("{delay 80}twelve chars")  # 8 chunks in 0.64 s
        await asyncio.sleep(0.3)
        assert kinds(await client.speak("")) == WHOLE
        assert await fatal_and_closed(client) == ("idle_timeout", 4000)


async def test_session_close_is_answered_by_the_close_frame_alone() -> None:
    """SP-7: in mid speech, with an utterance queued."""
    async with serving() as server:
        async with speaking(server.url, **PCM) as client:
            await client.text("{delay 5}" + "x" * 500)
            await client.flush()
            await client.until("audio")
            await client.text("more")
            await client.flush()
            await client.send("session.close")
            events, code, reason = await client.closed()
            assert set(kinds(events)) <= {"audio"}
            assert (code, reason) == (1000, "session.close")
        await server.empty()


async def test_close_on_done_closes_behind_session_done() -> None:
    async with serving() as server, speaking(server.url, **PCM, close_on_done=True) as client:
        await client.text("the last words")
        await client.flush()
        events, code, _ = await client.closed()
        assert kinds(events) == WHOLE
        assert code == 1000


async def test_a_client_that_closes_gets_its_close_frame_back() -> None:
    async with serving() as server:
        async with speaking(server.url, **PCM) as client:
            await client.text("{delay 5}" + "x" * 500)
            await client.flush()
            await client.until("audio")
            await client.websocket.close(1000, "enough")
            assert client.websocket.close_code == 1000
        await server.empty()
        assert await server.counter("live") == 0


async def test_draining_finishes_what_runs_refuses_what_comes_and_closes_with_1001() -> None:
    async with serving(drain_s=10) as server:
        async with speaking(server.url, **PCM) as idle, speaking(server.url, **PCM) as busy:
            await busy.text("{delay 20}finish me")
            await busy.flush()
            await busy.until("audio")
            await idle.send("session.ping")
            await idle.until("session.pong")
            server.app[DRAINING].begin()
            assert (await idle.closed())[1] == 1001
            await busy.text("too late")
            await busy.flush()
            events, code, _ = await busy.closed()
            assert code == 1001
            dones = [event for event in events if isinstance(event, dict) and event["type"] == "session.done"]
            assert {(done["utterance_index"], done["status"]) for done in dones} == {(0, "completed"), (1, "failed")}
            refused = next(event for event in events if isinstance(event, dict) and event["type"] == "error")
            assert (refused["code"], refused["utterance_index"]) == ("shutting_down", 1)
        await server.empty()


async def test_draining_does_not_last_for_ever() -> None:
    async with serving(drain_s=0.3) as server:
        async with speaking(server.url, **PCM) as client:
            await client.text("{delay 100}" + "x" * 500)
            await client.flush()
            await client.until("audio")
            server.app[DRAINING].begin()
            assert (await client.closed())[1] == 1001
        await server.empty()


async def test_an_old_session_ends() -> None:
    async with serving(session_s=0.3) as server, speaking(server.url, **PCM) as client:
        events, code, reason = await client.closed()
        assert (events, code) == ([], 1001)
        assert "limit" in reason


async def test_binary_is_refused_with_1003() -> None:
    async with serving() as server, speaking(server.url, **PCM) as client:
        await client.websocket.send(b"\0\1")
        assert await fatal_and_closed(client) == ("binary_not_allowed", 1003)


@pytest.mark.parametrize("size", [140_000, 5 << 20])
async def test_a_message_that_is_too_large_is_refused_with_1009(size: int) -> None:
    """Above the limit of its kind, and above what is read at all."""
    async with serving() as server:
        async with speaking(server.url, **PCM) as client:
            await client.send("input.text", text="x" * size)
            assert await fatal_and_closed(client) == ("message_too_large", 1009)
        await server.empty()


async def test_a_config_may_be_large() -> None:
    async with serving() as server, speaking(server.url, **PCM, instructions="x" * 3_000_000, ack=True) as client:
        answer = last([await client.next()])
        assert answer["ignored"] == ["instructions"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"\xff\xfe", 1), 1007),
        (frame(b"", 3), 1002),
        (frame(b"x" * 200, 9), 1002),
        (b"\xff\xff\xff\xff", 1002),
        (frame(b"part", 0), 1002),
    ],
    ids=["not text", "unknown kind", "long ping", "reserved bits", "continues nothing"],  # Frames are masked at random.
)
async def test_broken_websocket_frames_are_answered_with_the_protocols_own_codes(sent: bytes, code: int) -> None:
    async with serving(close_wait_s=0.3) as server:
        with await RawClient.open(server.url) as client:
            await client.speak("{delay 5}" + "x" * 500)
            await client.send_bytes(sent)
            answer = await client.read_all()
            assert struct.pack("!H", code) in answer[-130:]
        await server.empty()


async def test_fragmented_and_trickled_messages_are_messages() -> None:
    async with serving() as server, speaking(server.url, **PCM) as client:
        text = json.dumps({"type": "input.text", "text": "abc"})
        await client.websocket.send(iter([text[:5], text[5:9], text[9:]]))
        assert len(audio(await client.speak())) == 2 * 3 * 1200


GARBAGE: list[Any] = [
    "",
    "nonsense",
    "null",
    "[]",
    '{"type":',
    '{"type":1}',
    '{"type":"input.txt"}',
    '{"type":"input.text"}',
    '{"type":"input.text","text":1}',
    '{"type":"input.text","text":"a","x":1}',
    '{"type":"input.cancel","utterance_index":"0"}',
    '{"type":"session.config","speed":"fast"}',
    '{"type":"session.config","voice":{"id":[]}}',
    '{"type":"session.config","metadata":' + "[" * 5000 + "]" * 5000 + "}",
    '{"type":"input.text","text":"\\ud800"}',
    '{"type":"session.ping","type":"session.ping","x":{}}',
]


async def test_garbage_is_answered_with_typed_errors_and_hurts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Every message is either a message or one non-fatal error that names what is wrong; another session goes on."""
    chance = random.Random(3)
    async with serving() as server:
        async with speaking(server.url, **PCM) as client, speaking(server.url, **PCM) as other:
            await other.text("{delay 5}" + "x" * 200)
            await other.flush()
            for _ in range(300):
                await client.websocket.send(chance.choice(GARBAGE))
                error = last([await client.next()])
                assert (error["type"], error["fatal"]) == ("error", False)
                assert error["message"]
            assert kinds(await client.speak("still whole")) == WHOLE
            assert kinds(await other.until("session.done")) == WHOLE
        await server.empty()
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def speak_until_the_worker_dies(url: str, mode: str, started: asyncio.Semaphore, again: asyncio.Event) -> None:
    granularity, flushed = mode.split()
    async with speaking(url, **PCM, split_granularity=granularity) as client:
        await client.text("{delay 5}" + "x" * 2000 + ". And")
        if flushed == "flushed":
            await client.flush()
        await client.until("audio")
        started.release()
        error = last(await client.until("error"))
        assert (error["code"], error["partial_audio"]) == ("worker_died", True)
        assert last(await client.until("audio.done"))["error"] is True
        if flushed == "open":
            await client.text(" more.")
            await client.flush()
        (done,) = await client.until("session.done")
        assert isinstance(done, dict)
        assert (done["utterance_index"], done["status"]) == (0, "failed")
        await again.wait()
        assert kinds(await client.speak("and again.")) == WHOLE


async def test_a_worker_that_dies_fails_its_utterances_and_not_the_sessions() -> None:
    """S28: one typed error and one `session.done` each; when the worker is back, the same sockets speak."""
    modes = ["none flushed", "sentence flushed", "sentence open"] * 4
    started, again = asyncio.Semaphore(0), asyncio.Event()
    async with serving() as server:
        async with asyncio.TaskGroup() as group, speaking(server.url, **PCM) as untouched:
            for mode in modes:
                group.create_task(speak_until_the_worker_dies(server.url, mode, started, again))
            for _ in modes:
                await started.acquire()
            pid = server.runtime.statistics().stages["sine.tone"].pid
            assert pid is not None
            await asyncio.to_thread(kill_worker, pid)
            await until(lambda: server.runtime.statistics().stages["sine.tone"].pid not in (None, pid))
            await until(lambda: not server.runtime.dead_stages())
            again.set()
            assert kinds(await untouched.speak("untouched")) == WHOLE
        await server.empty()
