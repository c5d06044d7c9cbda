"""Clients that read slowly or not at all: their own engine work stops, memory is bounded, nobody else notices."""

from __future__ import annotations

import asyncio
import json
import struct
import time

import pytest
from over_socket import PCM, RawClient, Serving, audio, frame, kinds, parse_frames, serving, speaking, until

from streamsynth.realtime.speech_socket import QUEUED_MEDIA_S

WHOLE = ["audio.start", "audio", "audio.done", "session.done"]
LONG = "x" * 4000  # 200 s of tone
LEAD_S = 2.0
STEP_S = 0.08
SOCKET_S = 3.0  # what the kernel takes for a peer that does not read


async def frozen(server: Serving) -> int:
    """Return when the worker has made no step for two heartbeats: the number of steps it had made."""
    steps = -1
    async with asyncio.timeout(20):
        while steps != (steps := await server.counter("steps")):
            pass
    return steps


async def test_a_reader_that_stops_stops_its_own_engine_and_is_closed() -> None:
    """S36: bounded seconds ahead, then a typed error, 4002, and everything given back."""
    async with serving(f"tone.lead_seconds={LEAD_S}", write_stall_s=3) as server:
        before = await server.counter("steps")
        with await RawClient.open(server.url, receive_buffer=4096) as client:
            await client.speak(LONG)
            steps = await frozen(server) - before
            assert steps * STEP_S <= LEAD_S + QUEUED_MEDIA_S + SOCKET_S
            async with speaking(server.url, **PCM) as other:
                assert kinds(await other.speak("nobody else notices")) == WHOLE
            await until(lambda: server.runtime.statistics().live_flows == 0)
            end = parse_frames(await client.read_all())
        await server.empty()
        (error,) = [json.loads(payload) for opcode, payload in end if opcode == 1 and b'"error"' in payload]
        assert (error["code"], error["fatal"]) == ("stalled_reader", True)
        assert end[-1][0] == 8
        assert end[-1][1][:2] == struct.pack("!H", 4002)
        assert await server.counter("live") == 0


async def test_a_reader_that_never_comes_back_is_aborted_after_the_close_frame() -> None:
    async with serving(write_stall_s=0.3, close_wait_s=0.3) as server:
        with await RawClient.open(server.url, receive_buffer=4096) as client:
            await client.speak(LONG)
            await server.counter("steps")
            await server.empty()
            with pytest.raises(ConnectionResetError):
                for _ in range(1000):
                    await client.send("session.ping")
                    await asyncio.sleep(0.005)


async def test_sixty_four_stalled_readers_do_not_stop_the_next_client() -> None:
    async with serving(f"tone.lead_seconds={LEAD_S}") as server:
        stalled = [await RawClient.open(server.url, receive_buffer=4096) for _ in range(64)]
        for client in stalled:
            await client.speak(LONG)
        await frozen(server)
        async with speaking(server.url, **PCM) as reader:
            started = time.monotonic()
            assert len(audio(await reader.speak("x" * 200))) == 200 * 2400
            assert time.monotonic() - started < 5
        for client in stalled:
            client.vanish()
        await server.empty()


async def test_a_slow_reader_is_not_a_stalled_one() -> None:
    """S36: it gets its audio at its own speed, for longer than a stall may last; the engine keeps to that speed."""
    async with serving(f"tone.lead_seconds={LEAD_S}", write_stall_s=1) as server:
        with await RawClient.open(server.url, receive_buffer=4096) as client:
            await client.speak(LONG)
            received = b""
            ends = time.monotonic() + 2.5
            while time.monotonic() < ends:
                part = await client.read(2048)
                assert part
                received += part
                await asyncio.sleep(0.05)
            assert not [opcode for opcode, _ in parse_frames(received) if opcode == 8]
            client.vanish()
        await server.empty()


async def test_a_reader_whose_pong_waits_behind_what_it_has_not_read_is_not_dead() -> None:
    """It answers no ping for far longer than a dead peer may be silent, and reads on."""
    async with serving(f"tone.lead_seconds={LEAD_S}", ping_interval_s=0.3, dead_peer_s=0.6) as server:
        with await RawClient.open(server.url, receive_buffer=4096) as client:
            await client.speak(LONG)
            received = b""
            ends = time.monotonic() + 2.5
            while time.monotonic() < ends:
                part = await client.read(2048)
                assert part
                received += part
                await asyncio.sleep(0.05)
            assert not [opcode for opcode, _ in parse_frames(received) if opcode == 8]
            client.vanish()
        await server.empty()


async def test_a_cancel_of_a_client_that_had_stopped_reading_purges_what_waits() -> None:
    """S37: before the acknowledgement comes at most what the sockets held, after it nothing."""
    async with serving(f"tone.lead_seconds={LEAD_S}") as server:
        with await RawClient.open(server.url, receive_buffer=4096) as client:
            await client.speak(LONG)
            await frozen(server)
            await client.send("input.cancel")
            await client.send("session.close")
            frames = parse_frames(await client.read_all())
        opcodes = [opcode for opcode, _ in frames]
        texts = [json.loads(payload) for opcode, payload in frames if opcode == 1]
        spoken = sum(len(payload) for opcode, payload in frames if opcode == 2)
        assert spoken / 48_000 <= SOCKET_S
        assert opcodes[-1] == 8
        # Whether the acknowledgement left before the close purged it depends on the peer; audio may follow neither.
        if len(texts) > 1:
            assert [text["type"] for text in texts] == ["audio.start", "input.cancelled", "session.done"]
            assert texts[1]["samples_sent"] == spoken // 2
        await server.empty()


async def test_an_acknowledged_cancel_counts_exactly_what_a_slow_client_receives() -> None:
    async with serving(f"tone.lead_seconds={LEAD_S}") as server:
        with await RawClient.open(server.url, receive_buffer=4096) as client:
            await client.speak(LONG)
            await frozen(server)
            await client.send("input.cancel")
            data = b""
            while b'"session.done"' not in data:
                data += await client.read(65_536)
            frames = parse_frames(data)
        assert [opcode for opcode, _ in frames[-2:]] == [1, 1]
        cancelled = json.loads(frames[-2][1])
        assert cancelled["samples_sent"] == sum(len(payload) for opcode, payload in frames if opcode == 2) // 2
        await server.empty()


async def test_a_client_that_sends_without_reading_is_ended() -> None:
    """Answers are bounded like audio: pings and protocol pings in a loop, and nothing read."""
    async with serving(write_stall_s=30, close_wait_s=0.3) as server:
        with await RawClient.open(server.url, receive_buffer=4096) as client:
            await client.send("session.config", **PCM)
            with pytest.raises(ConnectionError):
                for _ in range(1000):
                    await client.send_bytes((frame(b'{"type":"session.ping"}') + frame(b"ping", 9)) * 200)
        await server.empty()


async def test_a_dead_peer_is_noticed_by_its_silence() -> None:
    """40 s without any bytes, in short: pings are not answered by a client that reads nothing and sends nothing."""
    async with serving(ping_interval_s=0.2, dead_peer_s=0.6, close_wait_s=0.2) as server:
        with await RawClient.open(server.url) as client:
            await client.send("session.config", **PCM)
            frames = parse_frames(await client.read_all())
        opcodes = [opcode for opcode, _ in frames]
        assert len(opcodes) in (3, 4)
        assert opcodes == [9] * (len(opcodes) - 1) + [8]
        assert frames[-1][1][:2] == struct.pack("!H", 1011)
        await server.empty()


async def test_bytes_of_an_unfinished_message_are_a_sign_of_life() -> None:
    """A large message over a slow line takes longer than the silence that is allowed."""
    async with serving(ping_interval_s=0.2, dead_peer_s=0.6) as server:
        with await RawClient.open(server.url) as client:
            message = frame(json.dumps({"type": "session.config", "ack": True, "instructions": "x" * 1000}).encode())
            for start in range(0, len(message), 50):
                await client.send_bytes(message[start : start + 50])
                await asyncio.sleep(0.06)
            received = b""
            while b"session.configured" not in received:
                received += await client.read(65_536)
            client.vanish()
        await server.empty()


async def test_a_client_that_answers_pings_lives() -> None:
    async with serving(ping_interval_s=0.1, dead_peer_s=0.3) as server, speaking(server.url, **PCM) as client:
        await asyncio.sleep(1)
        assert kinds(await client.speak("alive")) == WHOLE


async def test_a_reader_that_ends_its_side_before_it_reads_is_let_go_without_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SP-8: the transport closes by itself once what it holds has been read, and is not aborted after that."""
    async with serving() as server:
        with await RawClient.open(server.url, receive_buffer=4096) as client:
            await client.speak("x" * 2000)
            await frozen(server)
            client.half_close()
            await client.read_all()
    assert [record.message for record in caplog.records if record.exc_info] == []
