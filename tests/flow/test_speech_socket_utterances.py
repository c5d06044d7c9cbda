"""Utterances over the speech socket, from the real application with a real worker: bytes, order, config, limits."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from collections.abc import AsyncIterator
from typing import Any

import av
import numpy as np
import pytest
import pytest_asyncio
from over_socket import (
    PCM,
    SAMPLES_PER_CHARACTER,
    STREAM,
    Serving,
    audio,
    kinds,
    last,
    serving,
    speaking,
    tone,
)
from websockets.asyncio.client import connect

WHOLE = ["audio.start", "audio", "audio.done", "session.done"]
FORMATS = ["pcm", "wav", "flac", "mp3", "opus", "aac"]


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


async def test_a_client_of_the_references_messages_speaks_several_utterances_on_one_socket(server: Serving) -> None:
    """SP-1 to SP-4, SP-6, SP-14, SP-15: defaults untouched, one wav with true sizes each, written as such a client is:
    it sends text, then `input.done`, and reads until `session.done`."""
    async with connect(server.url.replace("http", "ws", 1) + STREAM) as websocket:
        await websocket.send(json.dumps({"type": "session.config"}))
        for number, texts in enumerate((["Hello ", "world."], [], ["A. B. C."])):
            for text in texts:
                await websocket.send(json.dumps({"type": "input.text", "text": text}))
            await websocket.send(json.dumps({"type": "input.done"}))
            file, messages = b"", []
            while not messages or messages[-1]["type"] != "session.done":
                event = await websocket.recv()
                if isinstance(event, bytes):
                    file += event
                else:
                    messages.append(json.loads(event))
            assert {message["utterance_index"] for message in messages} == {number}
            assert messages[-1]["total_sentences"] == (1 if texts else 0)
            if texts:
                start, done, _ = messages
                assert (start["format"], start["sample_rate"], start["sentence_index"]) == ("wav", 24_000, 0)
                assert start["sentence_text"] == "".join(texts)
                assert (done["total_bytes"], done["error"]) == (len(file), False)
                samples = len("".join(texts)) * SAMPLES_PER_CHARACTER
                with wave.open(io.BytesIO(file)) as opened:
                    assert (opened.getframerate(), opened.getnframes()) == (24_000, samples)
                    assert np.array_equal(np.frombuffer(opened.readframes(samples), "<i2"), tone(samples))


async def test_streamed_pcm_is_the_tone_itself_in_frames_of_whole_samples(server: Serving) -> None:
    """S2, S3, S7, S15, S22"""
    async with speaking(server.url, **PCM) as client:
        events = await client.speak("A tone", " of known", " length.")
    assert kinds(events) == WHOLE
    samples = 23 * SAMPLES_PER_CHARACTER
    assert np.array_equal(np.frombuffer(audio(events), "<i2"), tone(samples))
    frames = [event for event in events if isinstance(event, bytes)]
    assert len(frames) == 15  # one for each chunk of the engine
    assert all(len(frame) % 2 == 0 and len(frame) <= 4800 for frame in frames)
    assert last(events)["total_samples"] == samples


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("name", FORMATS)
async def test_every_format_decodes_to_what_was_said(server: Serving, name: str, streamed: bool) -> None:
    """S4: one container an utterance."""
    text = "Thirty-two characters of a tone."
    async with speaking(server.url, response_format=name, stream_audio=streamed) as client:
        events = await client.speak(text)
    assert kinds(events) == WHOLE
    data = audio(events)
    done = next(event for event in events if isinstance(event, dict) and event["type"] == "audio.done")
    assert done["total_bytes"] == len(data)
    samples = len(text) * SAMPLES_PER_CHARACTER
    if name == "pcm":
        assert len(data) == 2 * samples
        return
    with av.open(io.BytesIO(data)) as container:
        decoded = sum(frame.samples * 24_000 // frame.sample_rate for frame in container.decode(audio=0))
    assert samples <= decoded <= samples + 3000  # priming and padding of mp3 and aac


@pytest.mark.parametrize("text", ["", " ", ".", "🙂", "?! …"])
async def test_nothing_speakable_is_an_empty_utterance(server: Serving, text: str) -> None:
    """S64"""
    async with speaking(server.url, **PCM) as client:
        (done,) = await client.speak(text)
    assert isinstance(done, dict)
    assert (done["total_sentences"], done["total_samples"], done["status"]) == (0, 0, "completed")


async def test_text_is_joined_byte_for_byte(server: Serving) -> None:
    """S62: every character counts, lone spaces too."""
    async with speaking(server.url, **PCM) as client:
        events = await client.speak("Todo ", "listo.", " ", "", "\n")
        start = events[0]
    assert isinstance(start, dict)
    assert start["sentence_text"] == "Todo listo. \n"
    assert len(audio(events)) == 2 * 13 * SAMPLES_PER_CHARACTER


async def test_sentences_are_containers_and_their_audio_joins_without_a_seam(server: Serving) -> None:
    text = "One is here. Two is here. And this is three."
    async with speaking(server.url, **PCM, split_granularity="sentence") as client:
        events = await client.speak(text)
    assert kinds(events) == [*WHOLE[:3] * 3, "session.done"]
    starts = [event for event in events if isinstance(event, dict) and event["type"] == "audio.start"]
    assert [start["sentence_index"] for start in starts] == [0, 1, 2]
    assert "".join(start["sentence_text"] for start in starts).split() == text.split()
    joined = np.frombuffer(audio(events), "<i2")
    assert np.array_equal(joined, tone(len(joined)))
    assert last(events)["total_sentences"] == 3


async def test_with_sentences_audio_comes_before_the_flush(server: Serving) -> None:
    """S18"""
    async with speaking(server.url, **PCM, split_granularity="sentence") as client:
        await client.text("This one is complete. And this")
        events = await client.until("audio.done")
        assert kinds(events) == WHOLE[:3]
        await client.text(" one follows.")
        await client.flush()
        assert kinds(await client.until("session.done")) == WHOLE


async def test_without_a_granularity_nothing_is_made_before_the_flush(server: Serving) -> None:
    async with speaking(server.url, **PCM) as client:
        await client.text("This one is complete. ")
        await client.send("session.ping")
        assert kinds(await client.until("session.pong")) == ["session.pong"]
        assert server.runtime.statistics().live_flows == 0
        await client.flush()
        assert kinds(await client.until("session.done")) == WHOLE


async def test_utterances_that_are_sent_at_once_are_answered_in_order(server: Serving) -> None:
    async with speaking(server.url, **PCM) as client:
        for number in range(10):
            await client.text(f"number {number}")
            await client.flush()
        order = []
        for _ in range(10):
            events = await client.until("session.done")
            assert kinds(events) == WHOLE
            assert len(audio(events)) == 2 * 8 * SAMPLES_PER_CHARACTER
            order.append(last(events)["utterance_index"])
    assert order == list(range(10))


async def test_a_new_config_applies_to_the_next_utterance(server: Serving) -> None:
    """SP-6: while the earlier one still speaks."""
    async with speaking(server.url, **PCM) as client:
        await client.text("{delay 10}the first one")
        await client.flush()
        await client.until("audio")
        await client.send("session.config", **PCM, speed=2, sample_rate=48_000, ack=True)
        await client.text("abcd")
        await client.flush()
        first = await client.until("session.done")
        second = await client.until("session.done")
    configured = [event for event in first if isinstance(event, dict) and event["type"] == "session.configured"]
    assert configured[0]["config"]["speed"] == 2.0
    assert last(first)["total_samples"] == 13 * SAMPLES_PER_CHARACTER
    assert last(second)["total_samples"] == 4 * SAMPLES_PER_CHARACTER  # half as long, at twice the rate


async def test_no_message_is_larger_than_256_kib(server: Serving) -> None:
    """S73: a minute of speech as one file, and a sentence text of the full length."""
    async with speaking(server.url) as client:
        events = await client.speak("x" * 1200)
        assert max(len(event) for event in events if isinstance(event, bytes)) <= 256 * 1024
        assert last(events)["total_samples"] == 60 * 24_000
    async with speaking(server.url, **PCM) as client:
        await client.text("ü" * 60_000)
        await client.flush()
        start = (await client.until("audio.start"))[-1]
        assert isinstance(start, dict)
        assert start["sentence_text"] == "ü" * 60_000
        await client.send("input.cancel")
        await client.until("session.done")


async def test_a_cut_by_length_says_so(server: Serving) -> None:
    """S65"""
    async with speaking(server.url, **PCM, max_new_tokens=2) as client:
        done = last(await client.speak("far too long for two tokens"))
    assert (done["finish_reason"], done["total_samples"]) == ("length", 2 * 1920)


async def test_an_engine_that_fails_half_way_is_told_and_the_next_utterance_works(server: Serving) -> None:
    """SP-10"""
    async with speaking(server.url, **PCM) as client:
        events = await client.speak("{fail 3}some words here")
        assert kinds(events) == ["audio.start", "audio", "error", "audio.done", "session.done"]
        _, error, done, end = (event for event in events if isinstance(event, dict))
        assert (error["code"], error["partial_audio"], error["fatal"]) == ("engine_failed", True, False)
        assert (done["error"], done["total_bytes"]) == (True, len(audio(events)))
        assert (end["status"], end["total_samples"]) == ("failed", 3 * 1920)
        assert kinds(await client.speak("and on")) == WHOLE


async def test_an_engine_that_fails_before_audio_has_no_container(server: Serving) -> None:
    """Also when the file was to be finished first: then no byte of it was sent."""
    async with speaking(server.url) as client:
        assert kinds(await client.speak("{fail 0}x")) == ["error", "session.done"]
        events = await client.speak("{fail 2}some words")
        assert kinds(events) == ["audio.start", "error", "audio.done", "session.done"]
        error = events[1]
        assert isinstance(error, dict)
        assert error["partial_audio"] is False


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"voice": "nobody"}, "voice_not_found", "voice"),
        ({"model": "gpt-9"}, "model_not_found", "model"),
        ({"response_format": "ogg"}, "invalid_value", "response_format"),
        ({"speed": 9}, "invalid_value", "speed"),
        ({"word_timestamps": True}, "unsupported_field", "word_timestamps"),
        ({"ref_audio": "http://x/y.wav"}, "unsupported_reference", "ref_audio"),
        ({"stream_audio": "yes"}, "invalid_value", "stream_audio"),
        ({"split_granularity": "word"}, "invalid_value", "split_granularity"),
        ({"input": "text"}, "unsupported_field", "input"),
        ({"colour": "blue"}, "unknown_field", "colour"),
        ({"response_format": "mp3", "sample_rate": 8000}, "invalid_value", "sample_rate"),
    ],
)
async def test_a_refused_config_names_its_field(server: Serving, fields: dict[str, Any], code: str, param: str) -> None:
    async with speaking(server.url, **fields) as client:
        error = await client.next()
        assert isinstance(error, dict)
        assert (error["type"], error["code"], error["param"], error["fatal"]) == ("error", code, param, False)
        await client.send("session.config", **PCM)
        assert kinds(await client.speak("works")) == WHOLE


async def test_many_sessions_speak_at_once(server: Serving) -> None:
    """S58: each gets its own tone, whole."""

    async def one(number: int) -> None:
        async with speaking(server.url, **PCM) as client:
            for _ in range(3):
                events = await client.speak("x" * (number + 1))
                samples = (number + 1) * SAMPLES_PER_CHARACTER
                assert np.array_equal(np.frombuffer(audio(events), "<i2"), tone(samples))

    await asyncio.gather(*(one(number) for number in range(30)))
