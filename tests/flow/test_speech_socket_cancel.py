"""Cancelling over the speech socket: acknowledged at once, at every stage, and not a frame of it afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from over_socket import (
    PCM,
    SAMPLES_PER_CHARACTER,
    Event,
    Serving,
    SpeechClient,
    audio,
    kind,
    kinds,
    last,
    serving,
    speaking,
    tone,
    until,
)

WHOLE = ["audio.start", "audio", "audio.done", "session.done"]
CANCELLED = ["input.cancelled", "session.done"]
LONG = "x" * 2000

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Serving]:
    async with serving() as started:
        yield started
        assert await started.counter("live") == 0


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared: Serving) -> AsyncIterator[Serving]:
    yield shared
    await shared.empty()


async def quiet_since(client: SpeechClient) -> list[Event]:
    """What comes until the answer to a ping that is sent now."""
    await client.send("session.ping")
    return (await client.until("session.pong"))[:-1]


async def test_a_cancel_in_mid_audio_is_acknowledged_and_followed_by_nothing(server: Serving) -> None:
    """S37, S44: what was received is what the acknowledgement says was sent; the next utterance is whole."""
    async with speaking(server.url, **PCM) as client:
        await client.text("{delay 5}" + LONG)
        await client.flush()
        received = audio(await client.until("audio"))
        await client.send("input.cancel")
        events = await client.until("input.cancelled")
        received += audio(events)
        assert last(events)["samples_sent"] == len(received) // 2
        assert np.array_equal(np.frombuffer(received, "<i2"), tone(len(received) // 2))
        done = await client.next()
        assert isinstance(done, dict)
        assert (done["type"], done["status"], done["total_samples"]) == (
            "session.done",
            "cancelled",
            len(received) // 2,
        )
        assert await quiet_since(client) == []
        assert kinds(await client.speak("next")) == WHOLE


async def test_a_cancel_between_the_text_and_the_first_chunk_is_not_missed(server: Serving) -> None:
    """S38"""
    async with speaking(server.url, **PCM) as client:
        await client.text("{stall 0}" + LONG)
        await client.flush()
        await client.send("input.cancel", utterance_index=0)
        assert kinds(await client.until("session.done")) == CANCELLED
        assert await quiet_since(client) == []
        assert kinds(await client.speak("next")) == WHOLE


async def test_a_queued_utterance_is_cancelled_without_touching_the_one_that_speaks(server: Serving) -> None:
    """Its answer may overtake the audio of the first."""
    async with speaking(server.url, **PCM) as client:
        await client.text("{delay 20}the first")
        await client.flush()
        await client.text("the second")
        await client.flush()
        await client.send("input.cancel", utterance_index=1)
        events = await client.until("session.done")
        assert kinds(events)[-2:] == CANCELLED
        assert last(events)["utterance_index"] == 1
        events += await client.until("session.done")
        assert len(audio(events)) == 2 * 9 * SAMPLES_PER_CHARACTER
        assert last(events)["utterance_index"] == 0


async def test_cancel_and_new_text_in_one_packet_speak_the_new_text(server: Serving) -> None:
    """S45: at once, not after the old engine work has ended."""
    async with speaking(server.url, **PCM) as client:
        await client.text("{delay 5}" + LONG)
        await client.flush()
        await client.until("audio")
        for message in (("input.cancel", {}), ("input.text", {"text": "new"}), ("input.done", {})):
            await client.send(message[0], **message[1])
        await client.until("input.cancelled")
        events = await client.until("session.done") + await client.until("session.done")
    assert kinds(events) == ["session.done", *WHOLE]
    assert np.array_equal(np.frombuffer(audio(events), "<i2"), tone(3 * SAMPLES_PER_CHARACTER))


async def test_a_cancel_consumes_the_open_utterance(server: Serving) -> None:
    async with speaking(server.url, **PCM) as client:
        await client.text("never said")
        await client.send("input.cancel")
        assert kinds(await client.until("session.done")) == CANCELLED
        await client.flush()
        empty = await client.next()
        assert isinstance(empty, dict)
        assert (empty["utterance_index"], empty["total_sentences"], empty["status"]) == (1, 0, "completed")


async def test_twenty_quick_cancels_cost_nothing(server: Serving) -> None:
    """S39"""
    async with speaking(server.url, **PCM) as client:
        for _ in range(20):
            await client.text(LONG)
            await client.flush()
            await client.send("input.cancel")
        statuses = [last(await client.until("session.done"))["status"] for _ in range(20)]
        assert statuses == ["cancelled"] * 20
        assert kinds(await client.speak("next")) == WHOLE


async def test_nothing_to_cancel_is_not_fatal(server: Serving) -> None:
    """S47, S40"""
    async with speaking(server.url, **PCM) as client:
        for index in (None, 0, 99):
            await client.send("input.cancel", utterance_index=index)
            error = await client.next()
            assert isinstance(error, dict)
            assert (error["code"], error["fatal"], error.get("utterance_index")) == ("cancel_not_active", False, index)
        assert kinds(await client.speak("next")) == WHOLE


async def test_an_early_started_utterance_is_cancelled_before_its_flush(server: Serving) -> None:
    async with speaking(server.url, **PCM, split_granularity="sentence") as client:
        await client.text("This is a sentence. And more")
        await client.until("audio")
        await client.send("input.cancel")
        events = await client.until("session.done")
        assert kinds(events)[-2:] == CANCELLED
        assert kinds(await client.speak("Another one.")) == WHOLE


async def test_no_frame_follows_its_acknowledgement_at_whatever_moment_it_comes(server: Serving) -> None:
    """S37, S39, S29: 200 random cancels over 10 sessions, each followed by a marker that must come next in order."""
    chance = random.Random(2)

    async def session() -> None:
        async with speaking(server.url, **PCM) as client:
            for index in range(20):
                await client.text(f"{{delay {chance.choice([0, 1, 3])}}}" + "x" * chance.randint(1, 60))
                await client.flush()
                await asyncio.sleep(chance.uniform(0, 0.03))
                await client.send("input.cancel", utterance_index=index)
                events = await client.until("input.cancelled", "error")
                if kind(events[-1]) == "input.cancelled":
                    assert last(events)["samples_sent"] == len(audio(events)) // 2
                    assert kinds(await client.until("session.done")) == ["session.done"]
                else:
                    assert last(events)["code"] == "cancel_not_active"
                    assert kinds(events) == [*WHOLE, "error"]
                assert await quiet_since(client) == []

    await asyncio.gather(*(session() for _ in range(10)))


async def test_the_worker_stops_at_the_next_step(server: Serving) -> None:
    """S25, S44: within the step in flight and one that was already launched."""
    before = await server.counter("steps_after_cancel")
    async with speaking(server.url, **PCM) as client:
        for _ in range(10):
            await client.text("{delay 2}" + LONG)
            await client.flush()
            await client.until("audio")
            await client.send("input.cancel")
            await client.until("session.done")
        await until(lambda: server.runtime.statistics().live_flows == 0)
        assert await server.counter("live") == 0
    assert await server.counter("steps_after_cancel") - before <= 20
