"""The load client measures what a listener hears, and notices what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scripted_server import Scripted, scripted_server

from streamsynth.bench.cancels import cancel_at_random
from streamsynth.bench.client import Heard, SpeechClient, WrongTotal

SILENCE = bytes(2 * 2400)
SOUND = b"\0\x40" * 2400


async def hear(script: Callable[[Scripted], Awaitable[None]], **options: Any) -> Heard:
    async with scripted_server(script) as (url, _), SpeechClient(url, config={}, **options) as client:
        return await client.speak("a ", "text")


async def test_it_times_the_first_audio_its_length_and_the_first_sound() -> None:
    """TTFA counts from the first text to the first audio; the header-like `audio.start` before it is no audio."""

    async def script(server: Scripted) -> None:
        await server.receive_until("input.text")
        await server.start()
        await asyncio.sleep(0.03)
        await server.send_audio(SILENCE)
        await server.send_audio(SOUND)
        await server.done(4800)

    heard = await hear(script)
    assert heard.completed
    assert heard.ttfa_ns is not None and heard.audible_ns is not None
    assert heard.ttfa_ns > 30_000_000
    assert heard.first_payload_ns == 100_000_000
    assert heard.audible_ns - heard.ttfa_ns == 100_000_000
    assert (heard.samples, heard.audio_ns) == (4800, 200_000_000)


async def test_it_sees_a_gap() -> None:
    """S17."""

    async def script(server: Scripted) -> None:
        await server.receive_until("input.done")
        await server.start()
        await server.send_audio(SOUND)
        await asyncio.sleep(0.2)
        await server.send_audio(SOUND)
        await server.done(4800)

    heard = await hear(script)
    assert 60_000_000 < heard.underrun_ns < 5_000_000_000
    assert heard.lateness_ns == (0, heard.underrun_ns)


@pytest.mark.parametrize(("samples", "what"), [(2401, "bytes"), (2399, "bytes")])
async def test_a_server_that_counts_something_else_is_found_out(samples: int, what: str) -> None:
    """S24."""

    async def script(server: Scripted) -> None:
        await server.receive_until("input.done")
        await server.start()
        await server.send_audio(SOUND)
        await server.done(samples)
        await server.socket.wait_closed()

    with pytest.raises(WrongTotal, match=f"counted {2 * samples} {what}, 4800 arrived"):
        await hear(script)


async def test_frames_after_the_ack_of_a_cancel_are_counted() -> None:
    async def script(server: Scripted) -> None:
        await server.receive_until("input.done")
        await server.start()
        await server.send_audio(SOUND)
        await server.receive_until("input.cancel")
        await server.send("input.cancelled", utterance_index=0, samples_sent=2400)
        await server.send_audio(SOUND)
        await server.session_done(2400, status="cancelled")
        await server.send_audio(SOUND)
        await server.receive_until("session.ping")
        await server.send("session.pong")
        await server.socket.wait_closed()

    class Now:
        def uniform(self, _low: float, _high: float) -> float:
            return 0.0

    async with scripted_server(script) as (url, _), SpeechClient(url, config={}) as client:
        heard = await cancel_at_random(client, "text", 1.0, Now())  # type: ignore[arg-type]
    assert heard.status == "cancelled"
    assert heard.frames_after_ack == 2
    assert heard.cancel_to_ack_ns is not None and heard.cancel_to_ack_ns > 0


async def test_a_failure_has_its_reason() -> None:
    async def script(server: Scripted) -> None:
        await server.receive_until("input.done")
        await server.send("error", code="overloaded", message="full", fatal=False, utterance_index=0)
        await server.session_done(0, status="failed")

    heard = await hear(script)
    assert (heard.status, heard.error, heard.ttfa_ns) == ("failed", "overloaded: full", None)


async def test_a_closed_connection_is_a_failure() -> None:
    async def script(server: Scripted) -> None:
        await server.receive_until("input.done")
        await server.socket.close(1013, "full")

    heard = await hear(script)
    assert heard.status == "failed"
    assert heard.error is not None and "1013" in heard.error


async def test_a_stalled_reader_takes_next_to_nothing() -> None:
    sent = 0

    async def script(server: Scripted) -> None:
        nonlocal sent
        await server.receive_until("input.done")
        await server.start()
        while True:
            await server.send_audio(SOUND)
            sent += len(SOUND)

    async with scripted_server(script) as (url, _), SpeechClient(url, config={}, receive_buffer=4096) as client:
        await client.begin("text")
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 8 << 20
