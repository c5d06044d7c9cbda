"""Encoding beside the loop: in pieces, one at a time, and safe to give up at any moment."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from decoded import decode, encoded_at_once, packets, tone

from streamsynth.codecs import AudioEncoder, AudioFormat, EncodingLane, EncodingQueue, open_encoder
from streamsynth.errors import ErrorCode, StreamSynthError

RATE = 24_000
COMPRESSED = [AudioFormat.FLAC, AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC]


class Gate:
    """A carrier whose writes wait until they are let through, and that notes what happens to it."""

    def __init__(self, *, opened: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()
        if opened:
            self._open.set()
        self.entered = asyncio.Event()
        self.writes: list[int] = []
        self.threads: set[int] = set()
        self.at_work = False
        self.closed = asyncio.Event()
        self.closed_at_work = False

    def let_through(self) -> None:
        self._open.set()

    def write(self, samples: npt.NDArray[np.float32]) -> bytes:
        self.at_work = True
        self.threads.add(threading.get_ident())
        self.writes.append(len(samples))
        self._loop.call_soon_threadsafe(self.entered.set)
        assert self._open.wait(10)
        self.at_work = False
        return b"w"

    def finish(self) -> bytes:
        return b"f"

    def close(self) -> None:
        self.closed_at_work |= self.at_work
        self._loop.call_soon_threadsafe(self.closed.set)


class Broken(Gate):
    def write(self, samples: npt.NDArray[np.float32]) -> bytes:
        super().write(samples)
        raise OSError("no room for the packet")


def queue_of(
    gate: Gate, audio_format: AudioFormat = AudioFormat.MP3, lane: EncodingLane | None = None
) -> EncodingQueue:
    return EncodingQueue(AudioEncoder(audio_format, RATE, RATE, lambda: gate), lane)


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize("chunk", [100, 999, 6_000])
async def test_the_queue_gives_the_packets_of_the_encoder_alone(audio_format: AudioFormat, chunk: int) -> None:
    samples = tone(0.5, RATE)
    queue = EncodingQueue(open_encoder(audio_format, source_rate=RATE))
    pieces = [await queue.encode(part) for part in np.split(samples, range(chunk, len(samples), chunk))]
    streamed, whole = b"".join(pieces) + await queue.finish(), encoded_at_once(audio_format, samples)
    if audio_format is AudioFormat.OPUS:
        assert packets(streamed, audio_format) == packets(whole, audio_format)
    else:
        assert streamed == whole
    assert queue.encoder.samples == len(samples)


@pytest.mark.parametrize("audio_format", [AudioFormat.PCM, AudioFormat.WAV])
async def test_pcm_and_wav_are_encoded_on_the_loop_at_once(audio_format: AudioFormat) -> None:
    gate = Gate(opened=True)
    queue = queue_of(gate, audio_format)
    assert await queue.encode(tone(0.001, RATE)) == b"w"
    assert gate.threads == {threading.get_ident()}
    assert await queue.finish() == b"wf"


async def test_resampling_on_the_loop_gives_others_their_turns() -> None:
    """Five seconds are 10 ms of work."""
    samples = tone(5.2, RATE)
    queue = EncodingQueue(open_encoder(AudioFormat.PCM, source_rate=RATE, sample_rate=48_000))
    call = asyncio.create_task(queue.encode(samples))
    turns = 0
    while not call.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10
    whole = open_encoder(AudioFormat.PCM, source_rate=RATE, sample_rate=48_000)
    assert call.result() == whole.encode(samples)
    assert await queue.finish() == whole.finish()


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_resampling_that_is_given_up_between_two_turns_ends_the_queue(how: str) -> None:
    queue = EncodingQueue(open_encoder(AudioFormat.WAV, source_rate=RATE, sample_rate=16_000))
    call = asyncio.create_task(queue.encode(tone(5, RATE)))
    await asyncio.sleep(0)
    if how == "cancelled":
        call.cancel()
    else:
        queue.close()
    with pytest.raises((asyncio.CancelledError, StreamSynthError)):
        await call
    with pytest.raises(StreamSynthError) as refused:
        await queue.encode(tone(0.1, RATE))
    assert refused.value.code is ErrorCode.CANCELLED


async def test_compressing_codecs_never_run_on_the_loop() -> None:
    gate = Gate(opened=True)
    queue = queue_of(gate)
    await queue.encode(tone(0.1, RATE))
    await queue.finish()
    assert threading.get_ident() not in gate.threads


async def test_pieces_are_at_least_60_ms_once_the_first_audio_is_out() -> None:
    """The first 120 ms go through as they come: each of them can be the one that makes the first bytes."""
    gate = Gate(opened=True)
    queue = queue_of(gate)
    for part in np.array_split(tone(1.0, RATE), 100):
        await queue.encode(part)
    assert gate.writes[:12] == [240] * 12
    assert set(gate.writes[12:]) == {6 * 240}
    await queue.encode(tone(0.5, RATE))
    assert gate.writes[-1] >= 12_000
    await queue.encode(tone(0.01, RATE))
    await queue.finish()
    assert sum(gate.writes) == queue.encoder.samples == round(1.51 * RATE)


async def test_closing_while_a_thread_encodes_waits_for_the_thread() -> None:
    gate = Gate()
    queue = queue_of(gate)
    encoding = asyncio.create_task(queue.encode(tone(0.1, RATE)))
    await gate.entered.wait()
    queue.close()
    queue.close()
    assert not gate.closed.is_set()
    gate.let_through()
    with pytest.raises(StreamSynthError) as raised:
        await encoding
    assert raised.value.code is ErrorCode.CANCELLED
    await gate.closed.wait()
    assert not gate.closed_at_work


async def test_cancelling_a_call_gives_the_encoder_back_and_ends_the_stream() -> None:
    """A piece is lost, so whatever followed would have a gap."""
    gate = Gate()
    queue = queue_of(gate)
    encoding = asyncio.create_task(queue.encode(tone(0.1, RATE)))
    await gate.entered.wait()
    encoding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await encoding
    gate.let_through()
    await gate.closed.wait()
    assert not gate.closed_at_work
    for call in (queue.encode(tone(0.1, RATE)), queue.finish()):
        with pytest.raises(StreamSynthError) as raised:
            await call
        assert raised.value.code is ErrorCode.CANCELLED


async def test_cancelling_the_end_gives_the_encoder_back_too() -> None:
    gate = Gate()
    queue = queue_of(gate)
    finishing = asyncio.create_task(queue.finish())
    await gate.entered.wait()
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    gate.let_through()
    await gate.closed.wait()
    assert not gate.closed_at_work


async def test_a_session_has_one_thread_even_after_a_cancel() -> None:
    """The next utterance's encoder waits for the thread of the cancelled one."""
    lane = EncodingLane()
    first, second = Gate(), Gate(opened=True)
    cancelled, following = queue_of(first, lane=lane), queue_of(second, lane=lane)
    encoding = asyncio.create_task(cancelled.encode(tone(0.1, RATE)))
    await first.entered.wait()
    encoding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await encoding
    next_encoding = asyncio.create_task(following.encode(tone(0.1, RATE)))
    await asyncio.sleep(0)
    assert second.writes == []
    first.let_through()
    assert await next_encoding == b"w"
    assert not first.at_work
    await following.finish()


async def test_a_call_cancelled_before_its_turn_never_reaches_a_thread() -> None:
    lane = EncodingLane()
    first, second = Gate(), Gate(opened=True)
    busy, waiting = queue_of(first, lane=lane), queue_of(second, lane=lane)
    encoding = asyncio.create_task(busy.encode(tone(0.1, RATE)))
    await first.entered.wait()
    turned_away = asyncio.create_task(waiting.encode(tone(0.1, RATE)))
    await asyncio.sleep(0)
    turned_away.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turned_away
    first.let_through()
    assert await encoding == b"w"
    await busy.finish()
    assert second.writes == []


async def test_closing_a_queue_that_waits_for_its_turn_refuses_the_call() -> None:
    lane = EncodingLane()
    first, second = Gate(), Gate(opened=True)
    busy, waiting = queue_of(first, lane=lane), queue_of(second, lane=lane)
    encoding = asyncio.create_task(busy.encode(tone(0.1, RATE)))
    await first.entered.wait()
    refused = asyncio.create_task(waiting.encode(tone(0.1, RATE)))
    await asyncio.sleep(0)
    waiting.close()
    first.let_through()
    with pytest.raises(StreamSynthError) as raised:
        await refused
    assert raised.value.code is ErrorCode.CANCELLED
    assert second.writes == []
    await encoding
    await busy.finish()


async def test_a_broken_encoder_is_one_typed_error_and_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """V42"""
    gate = Broken(opened=True)
    queue = queue_of(gate, AudioFormat.FLAC)
    with pytest.raises(StreamSynthError, match="flac encoder failed: no room for the packet") as raised:
        await queue.encode(tone(0.1, RATE))
    assert raised.value.code is ErrorCode.ENCODER_FAILED
    await gate.closed.wait()
    queue.close()
    assert caplog.records == []


async def test_a_failure_that_nobody_waits_for_is_not_logged_as_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    gate = Broken()
    queue = queue_of(gate)
    encoding = asyncio.create_task(queue.encode(tone(0.1, RATE)))
    await gate.entered.wait()
    encoding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await encoding
    gate.let_through()
    await gate.closed.wait()
    assert caplog.records == []


@pytest.mark.parametrize("audio_format", COMPRESSED)
async def test_real_encoders_given_up_at_random_moments_leave_the_pool_working(audio_format: AudioFormat) -> None:
    random = np.random.default_rng(11)
    with ThreadPoolExecutor(max_workers=2) as pool:
        lane = EncodingLane(pool)
        for _ in range(30):
            queue = EncodingQueue(open_encoder(audio_format, source_rate=44_100), lane)
            speaking = asyncio.create_task(speak(queue, tone(1.0, 44_100)))
            for _ in range(random.integers(0, 40)):
                await asyncio.sleep(0)
            if random.integers(2):
                queue.close()
            speaking.cancel()
            await asyncio.wait([speaking])
        await lane.idle()
        after = await speak(EncodingQueue(open_encoder(audio_format, source_rate=RATE), lane), tone(0.2, RATE))
    assert len(decode(after, audio_format)[0]) > 0


async def speak(queue: EncodingQueue, samples: npt.NDArray[np.float32]) -> bytes:
    pieces = [await queue.encode(part) for part in np.array_split(samples, 10)]
    return b"".join(pieces) + await queue.finish()
