"""Where speech goes: files that are whole however they end, pipes that may be full, a sound card (here a stand-in)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import types
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsynth.codecs.quantise import to_s16
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.sinks import SPEAKER_LEAD_S, FileSink, PipeSink, SpeakerSink
from streamsynth.testing.faults import fault_at
from streamsynth.testing.sine import sine

RATE = 24_000


def wav(path: Path) -> tuple[int, bytes]:
    with wave.open(str(path)) as file:
        return file.getframerate(), file.readframes(file.getnframes())


@pytest.mark.parametrize("rate", [8_000, 44_100])
async def test_a_wav_file_has_the_rate_of_its_audio_and_a_true_length(tmp_path: Path, rate: int) -> None:
    sink = FileSink(tmp_path / "out.wav")
    for start in range(0, 5000, 1000):
        await sink.write(sine(start, 1000), rate)
    await sink.finish()
    assert wav(tmp_path / "out.wav") == (rate, to_s16(sine(0, 5000)).tobytes())


async def test_a_wav_file_that_is_closed_half_way_is_whole(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "out.wav")
    await sink.write(sine(0, 1000), RATE)
    sink.close()
    sink.close()
    assert wav(tmp_path / "out.wav") == (RATE, to_s16(sine(0, 1000)).tobytes())


async def test_nothing_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    path.write_text("something older")
    FileSink(path).close()
    assert path.read_text() == "something older"


async def test_an_empty_speech_is_an_empty_file(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "out.wav")
    await sink.finish()
    assert wav(tmp_path / "out.wav") == (RATE, b"")


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3"])
async def test_a_write_that_is_cancelled_leaves_no_thread_and_no_open_file(tmp_path: Path, suffix: str) -> None:
    wait, struck = 0, True
    while struck:
        sink = FileSink(tmp_path / f"out.{suffix}")
        struck = await fault_at(wait, sink.write(sine(0, 48_000), RATE))
        sink.close()
        wait += 1


@pytest.mark.parametrize("name", ["out", "out.ogg", "no/such/folder/out.wav"])
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StreamSynthError) as caught:
        FileSink(tmp_path / name)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "output")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


async def test_a_pipe_gets_everything_however_slowly_it_is_read(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    received = bytearray()
    writer = asyncio.create_task(PipeSink(writing).write(sine(0, 200_000), RATE))
    while not writer.done() or len(received) < 400_000:
        with contextlib.suppress(BlockingIOError):
            received += os.read(reading, 3_001)
        await asyncio.sleep(0)
    assert received == to_s16(sine(0, 200_000)).tobytes()


async def test_a_full_pipe_can_be_given_up(pipe: tuple[int, int]) -> None:
    writer = asyncio.create_task(PipeSink(pipe[1]).write(sine(0, 200_000), RATE))
    done, _ = await asyncio.wait([writer], timeout=0.05)
    assert not done
    writer.cancel()
    await asyncio.wait([writer])
    assert writer.cancelled()


class FakePortAudio(types.ModuleType):
    """Plays a block whenever the test says so."""

    class PortAudioError(Exception):
        pass

    class CallbackStop(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("sounddevice")
        self.played = np.zeros(0, np.float32)
        self.refuse = False
        self.running = False

    def OutputStream(  # noqa: N802  # sounddevice's name
        self, *, samplerate: int, channels: int, dtype: str, callback: Any, finished_callback: Callable[[], None]
    ) -> FakePortAudio:
        if self.refuse:
            raise self.PortAudioError("no device")
        assert (samplerate, channels, dtype) == (RATE, 1, "float32")
        self._callback, self._finished = callback, finished_callback
        return self

    def start(self) -> None:
        self.running = True

    def abort(self) -> None:
        self.running = False

    def close(self) -> None:
        assert not self.running

    async def play(self, frames: int) -> None:
        out = np.full((frames, 1), np.nan, np.float32)
        try:
            self._callback(out, frames, None, None)
        except self.CallbackStop:
            self.played = np.concatenate([self.played, out[:, 0]])
            self._finished()
        else:
            self.played = np.concatenate([self.played, out[:, 0]])
        await asyncio.sleep(0)


@pytest.fixture
def port_audio(monkeypatch: pytest.MonkeyPatch) -> FakePortAudio:
    fake = FakePortAudio()
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    return fake


async def test_the_speakers_play_every_sample_once_and_in_order(port_audio: FakePortAudio) -> None:
    sink = SpeakerSink()
    await sink.write(sine(0, 1000), RATE)
    await sink.write(sine(1000, 500), RATE)
    finishing = asyncio.create_task(sink.finish())
    while not finishing.done():
        await port_audio.play(400)
        await asyncio.sleep(0)
    assert np.array_equal(port_audio.played, np.concatenate([sine(0, 1500), np.zeros(100, np.float32)]))
    assert (sink.underruns, port_audio.running) == (0, False)


async def test_the_speakers_hold_only_so_much(port_audio: FakePortAudio) -> None:
    sink = SpeakerSink()
    writer = asyncio.create_task(sink.write(sine(0, 2 * RATE), RATE))
    await asyncio.sleep(0)
    assert not writer.done()
    await port_audio.play(round((2 - SPEAKER_LEAD_S) * RATE))
    await writer
    sink.close()


async def test_a_late_chunk_is_silence_and_counted(port_audio: FakePortAudio) -> None:
    sink = SpeakerSink()
    await sink.write(sine(0, 100), RATE)
    await port_audio.play(200)
    assert sink.underruns == 1
    assert np.array_equal(port_audio.played[100:], np.zeros(100, np.float32))
    sink.close()
    assert not port_audio.running


async def test_no_sound_card_is_said_with_the_way_out(port_audio: FakePortAudio) -> None:
    port_audio.refuse = True
    with pytest.raises(StreamSynthError, match="cannot be opened") as caught:
        await SpeakerSink().write(sine(0, 1), RATE)
    assert caught.value.code is ErrorCode.INVALID_VALUE


async def test_no_sounddevice_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(StreamSynthError, match=r"pip install 'streamsynth\[speakers\]'.*or write to a file") as caught:
        SpeakerSink()
    assert caught.value.param == "output"
