"""From chunks to containers and frames: nothing is lost, added or moved, in any format."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import threading
import wave
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.codecs import EncodingLane, open_encoder
from streamsynth.codecs.formats import AudioFormat
from streamsynth.codecs.quantise import to_s16
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.session_config import SessionSettings, parse_session_config
from streamsynth.realtime.speech_audio import FRAME_MS, UtteranceAudio
from streamsynth.realtime.speech_events import Audio, ContainerEnd, ContainerStart, Piece
from streamsynth.speech import AudioChunk
from streamsynth.testing.fake_clock import settle
from streamsynth.testing.sine import sine
from streamsynth.testing.sine_pipeline import SINE

RATE = 24_000
LIMITS = Limits()
MAX_BYTES = LIMITS.outbound_message_bytes
FORMATS = [each.value for each in AudioFormat]


def parsed(**fields: Any) -> SessionSettings:
    return parse_session_config(fields, {"sine": SINE}).settings


def chunks(sizes: Sequence[int], *, segments: Sequence[str] = ("all",), rate: int = RATE) -> list[AudioChunk]:
    """A continuous tone in chunks of these sizes, the same sizes again for each segment."""
    made, first = [], 0
    for segment, text in enumerate(segments):
        for position, size in enumerate(sizes):
            last = position == len(sizes) - 1
            made.append(
                AudioChunk(
                    samples=sine(first, size, sample_rate=rate),
                    sample_rate=rate,
                    first_sample=first,
                    segment=segment,
                    segment_text=text if position == 0 else None,
                    segment_final=last,
                    final=last and segment == len(segments) - 1,
                )
            )
            first += size
    return made


@asynccontextmanager
async def opened(settings_: SessionSettings, rate: int = RATE) -> AsyncIterator[UtteranceAudio]:
    audio = UtteranceAudio(settings_, rate, lane=EncodingLane(), limits=LIMITS)
    try:
        yield audio
    finally:
        audio.close()


async def made(settings_: SessionSettings, pieces: Iterable[AudioChunk], rate: int = RATE) -> list[Piece]:
    async with opened(settings_, rate) as audio:
        out: list[Piece] = []
        for chunk in pieces:
            out += await audio.add(chunk)
        return out + await audio.finish()


def containers(pieces: list[Piece]) -> list[tuple[ContainerStart, list[Audio]]]:
    """Checks that the pieces are containers, whole and one after another."""
    found: list[tuple[ContainerStart, list[Audio]]] = []
    is_open = False
    for piece in pieces:
        match piece:
            case ContainerStart():
                assert not is_open
                found.append((piece, []))
                is_open = True
            case Audio():
                assert is_open
                found[-1][1].append(piece)
            case ContainerEnd():
                assert is_open
                is_open = False
    assert not is_open
    return found


def joined(frames: list[Audio]) -> bytes:
    return b"".join(frame.data for frame in frames)


def pcm(first: int, samples: int) -> npt.NDArray[np.int16]:
    return to_s16(sine(first, samples))


@pytest.mark.parametrize("sizes", [[1920] * 3, [4063, 1, 0, 777], [100_000], [0]])
async def test_streamed_pcm_is_the_tone_in_small_frames_of_whole_samples(sizes: list[int]) -> None:
    """S2, S3, S7, S22: whatever chunks the engine makes."""
    pieces = await made(parsed(response_format="pcm", stream_audio=True), chunks(sizes))
    if sum(sizes) == 0:
        assert pieces == []
        return
    ((start, frames),) = containers(pieces)
    assert start == ContainerStart("all", "pcm", RATE, 1)
    assert np.array_equal(np.frombuffer(joined(frames), "<i2"), pcm(0, sum(sizes)))
    for frame in frames:
        assert len(frame.data) == 2 * frame.samples
        assert frame.samples <= RATE * FRAME_MS // 1000


async def test_each_chunk_leaves_at_once() -> None:
    """S22: nothing waits for the end of the segment."""
    async with opened(parsed(response_format="pcm", stream_audio=True)) as audio:
        for chunk in chunks([1920] * 4):
            assert sum(piece.samples for piece in await audio.add(chunk) if isinstance(piece, Audio)) == 1920


@pytest.mark.parametrize("name", FORMATS)
async def test_a_streamed_container_is_what_the_encoder_makes_in_one_go(name: str) -> None:
    """S4: one container, in frames that end anywhere, whose samples add up."""
    source = chunks([1920] * 7 + [333])
    total = sum(len(chunk.samples) for chunk in source)
    ((start, frames),) = containers(await made(parsed(response_format=name, stream_audio=True), source))
    assert (start.format, start.sample_rate) == (name, RATE)
    assert all(0 < len(frame.data) <= MAX_BYTES for frame in frames)
    encoder = open_encoder(AudioFormat(name), source_rate=RATE)
    expected = encoder.encode(np.concatenate([chunk.samples for chunk in source])) + encoder.finish()
    assert sum(frame.samples for frame in frames) == encoder.samples
    if name != "opus":  # whose stream has a random serial number
        assert joined(frames) == expected
    if name in ("pcm", "wav"):
        assert encoder.samples == total


@pytest.mark.parametrize("name", FORMATS)
async def test_a_finished_file_comes_after_its_start_in_frames_of_at_most_256_kib(name: str) -> None:
    """S73"""
    source = chunks([24_000] * 13)
    pieces = await made(parsed(response_format=name), source)
    assert isinstance(pieces[0], ContainerStart)
    ((_, frames),) = containers(pieces)
    assert all(0 < len(frame.data) <= MAX_BYTES for frame in frames)
    assert sum(frame.samples for frame in frames) >= 13 * 24_000
    if name == "wav":
        assert len(frames) == 3
        with wave.open(io.BytesIO(joined(frames))) as file:
            assert (file.getnframes(), file.getframerate(), file.getnchannels()) == (13 * 24_000, RATE, 1)
            assert np.array_equal(np.frombuffer(file.readframes(13 * 24_000), "<i2"), pcm(0, 13 * 24_000))


async def test_a_finished_file_is_sent_when_it_is_finished() -> None:
    source = chunks([1920] * 3)
    async with opened(parsed(response_format="wav")) as audio:
        assert [type(piece) for piece in await audio.add(source[0])] == [ContainerStart]
        assert await audio.add(source[1]) == []
        assert [type(piece) for piece in await audio.add(source[2])] == [Audio, ContainerEnd]
        assert await audio.finish() == []


async def test_what_is_held_for_a_finished_file_is_bounded() -> None:
    """Each sentence is a file of its own, and streamed audio is not held at all."""
    limits = Limits(finished_file_bytes=2 * 48_000)
    source = chunks([24_000, 24_000], segments=["One.", "Two."])
    for fields in ({"split_granularity": "sentence"}, {"stream_audio": True}, {"sample_rate": 8_000}):
        held = UtteranceAudio(parsed(response_format="wav", **fields), RATE, lane=EncodingLane(), limits=limits)
        for chunk in source:
            await held.add(chunk)
        held.close()
    audio = UtteranceAudio(parsed(response_format="mp3"), RATE, lane=EncodingLane(), limits=limits)
    long = chunks([24_000] * 3)
    for chunk in long[:2]:
        await audio.add(chunk)
    with pytest.raises(StreamSynthError) as caught:
        await audio.add(long[2])
    assert caught.value.code is ErrorCode.TEXT_TOO_LONG
    assert "2 s" in caught.value.message
    audio.close()


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("name", ["wav", "mp3", "flac"])
async def test_each_sentence_is_a_container_of_its_own(name: str, streamed: bool) -> None:
    source = chunks([1920, 700], segments=["One.", "Two.", "Three."])
    found = containers(await made(parsed(response_format=name, stream_audio=streamed), source))
    assert [start.text for start, _ in found] == ["One.", "Two.", "Three."]
    if name == "wav":
        for number, (_, frames) in enumerate(found):
            assert np.array_equal(np.frombuffer(joined(frames)[44:], "<i2"), pcm(number * 2620, 2620))
            assert sum(frame.samples for frame in frames) == 2620


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000, 44_100, 48_000])
async def test_pcm_is_gapless_across_sentences_at_every_rate(rate: int, streamed: bool) -> None:
    """S2, S11: containers joined are the utterance in one piece; the resampler never starts anew."""
    settings_ = parsed(response_format="pcm", stream_audio=streamed, sample_rate=rate)
    source = chunks([1920, 1301], segments=["One.", "Two.", "Three."])
    found = containers(await made(settings_, source))
    assert [start.text for start, _ in found] == ["One.", "Two.", "Three."]
    encoder = open_encoder(AudioFormat.PCM, source_rate=RATE, sample_rate=rate)
    expected = encoder.encode(np.concatenate([chunk.samples for chunk in source])) + encoder.finish()
    assert b"".join(joined(frames) for _, frames in found) == expected
    for number, (_, frames) in enumerate(found[:-1], 1):
        before = sum(frame.samples for _, earlier in found[:number] for frame in earlier)
        assert before == number * 3221 * rate // RATE
        assert frames


async def test_the_end_of_a_sentence_does_not_wait_for_the_next_one_without_resampling() -> None:
    source = chunks([1920], segments=["One.", "Two."])
    async with opened(parsed(response_format="pcm", stream_audio=True)) as audio:
        assert isinstance((await audio.add(source[0]))[-1], ContainerEnd)


@pytest.mark.parametrize("name", ["pcm", "wav", "mp3"])
async def test_a_sentence_without_samples_is_no_container(name: str) -> None:
    """S64"""
    silent = AudioChunk(
        samples=np.zeros(0, np.float32), sample_rate=RATE, first_sample=0, segment_text="…", segment_final=True
    )
    spoken = AudioChunk(
        samples=sine(0, 1920),
        sample_rate=RATE,
        first_sample=0,
        segment=1,
        segment_text="One.",
        segment_final=True,
        final=True,
    )
    settings_ = parsed(response_format=name, stream_audio=True)
    assert [start.text for start, _ in containers(await made(settings_, [silent, spoken]))] == ["One."]


@pytest.mark.parametrize("rate", [8_000, 11_025, 24_000, 44_100])
@pytest.mark.parametrize("size", range(3221, 3226))
async def test_an_end_that_comes_late_is_no_sentence_of_its_own(rate: int, size: int) -> None:
    """Whatever the resampler holds, and however the last sample is rounded."""
    (spoken,) = chunks([size])
    end = AudioChunk(
        samples=np.zeros(0, np.float32), sample_rate=RATE, first_sample=size, segment_final=True, final=True
    )
    settings_ = parsed(response_format="pcm", sample_rate=rate, stream_audio=True)
    spoken = dataclasses.replace(spoken, final=False)
    ((start, frames),) = containers(await made(settings_, [spoken, end]))
    assert start.text == "all"
    assert sum(frame.samples for frame in frames) == (2 * size * rate + RATE) // (2 * RATE)


async def test_another_rate_in_mid_utterance_is_an_engine_fault() -> None:
    """S9"""
    async with opened(parsed(response_format="pcm", stream_audio=True)) as audio:
        with pytest.raises(StreamSynthError) as caught:
            await audio.add(chunks([100], rate=48_000)[0])
    assert caught.value.code is ErrorCode.ENGINE_FAILED
    assert "48000" in caught.value.message


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6000), min_size=1, max_size=6),
    segments=st.integers(1, 3),
    name=st.sampled_from(["pcm", "wav"]),
    streamed=st.booleans(),
    rate=st.sampled_from([8_000, 24_000, 44_100]),
)
def test_samples_and_bytes_always_agree(sizes: list[int], segments: int, name: str, streamed: bool, rate: int) -> None:
    """SP-14: what the frames say that they hold is what they hold, header excepted."""
    settings_ = parsed(response_format=name, stream_audio=streamed, sample_rate=rate)
    source = chunks(sizes, segments=[str(number) for number in range(segments)])
    for _, frames in containers(asyncio.run(made(settings_, source))):
        header = 44 if name == "wav" else 0
        assert len(frames[0].data) == header + 2 * frames[0].samples
        assert all(len(frame.data) == 2 * frame.samples for frame in frames[1:])


async def test_cancelled_in_the_encoder_it_gives_everything_back() -> None:
    """At the one await of `add`: the thread in use ends by itself, and the next utterance has the lane after it."""
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        lane = EncodingLane(pool)
        blocker = pool.submit(release.wait)
        audio = UtteranceAudio(parsed(response_format="mp3", stream_audio=True), RATE, lane=lane, limits=LIMITS)
        adding = asyncio.create_task(audio.add(chunks([1920])[0]))
        await settle()
        adding.cancel()
        await asyncio.wait([adding])
        audio.close()
        with pytest.raises(StreamSynthError):
            await audio.add(chunks([1920])[0])
        release.set()
        assert blocker.result()
        following = UtteranceAudio(parsed(response_format="mp3", stream_audio=True), RATE, lane=lane, limits=LIMITS)
        assert await following.add(chunks([1920])[0])
        following.close()
