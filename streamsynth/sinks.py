"""Where speech can go: a file, a pipe, the speakers."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from streamsynth.codecs import (
    DEFAULT_SAMPLE_RATE,
    SAMPLE_RATES,
    AudioFormat,
    EncodingQueue,
    open_encoder,
    wav_header,
)
from streamsynth.codecs.quantise import to_s16
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value

Samples = npt.NDArray[np.float32]

SPEAKER_LEAD_S = 1.0
"""Audio that may wait for the sound card; more waits where it is made."""


class Sink(Protocol):
    """Takes mono float32 samples, all at one rate. `close` after `finish`, or alone to give up; it never waits."""

    async def write(self, samples: Samples, sample_rate: int) -> None: ...

    async def finish(self) -> None:
        """Everything is written (played) when this returns."""

    def close(self) -> None: ...


def format_of(path: Path) -> AudioFormat:
    """By the suffix of the name; raises INVALID_VALUE."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in {known.value for known in AudioFormat}:
        raise invalid_value("output", str(path), "a name that ends in ." + ", .".join(AudioFormat))
    return AudioFormat(suffix)


class FileSink:
    """A file in the format of its suffix, made when the first bytes are there. Raises INVALID_VALUE for a name that
    cannot be, OSError as `open` does.

    pcm and wav grow as they are written; a flac file appears at the end. Closed half-way, what is there is whole.
    """

    def __init__(self, path: Path) -> None:
        self._format = format_of(path)
        if not path.parent.is_dir():
            raise invalid_value("output", str(path), "in a folder that exists")
        self._path = path
        self._file: BinaryIO | None = None
        self._queue: EncodingQueue | None = None
        self._audio_bytes = 0

    async def write(self, samples: Samples, sample_rate: int) -> None:
        queue = self._queue or self._open_queue(sample_rate)
        self._append(await queue.encode(samples))

    async def finish(self) -> None:
        queue = self._queue or self._open_queue(DEFAULT_SAMPLE_RATE)
        self._append(await queue.finish())
        self._open_file()
        self.close()

    def close(self) -> None:
        if self._file is not None and not self._file.closed:
            if self._format is AudioFormat.WAV:
                self._file.seek(0)
                self._file.write(self._wav_header())
            self._file.close()
        if self._queue is not None:
            self._queue.close()

    def _open_queue(self, sample_rate: int) -> EncodingQueue:
        carried = sample_rate in SAMPLE_RATES[self._format]
        encoder = open_encoder(
            # The header of a wav file says its length, so it is written here, last.
            AudioFormat.PCM if self._format is AudioFormat.WAV else self._format,
            source_rate=sample_rate,
            sample_rate=sample_rate if carried else None,
            live=False,
        )
        self._queue = EncodingQueue(encoder)
        return self._queue

    def _append(self, data: bytes) -> None:
        if data:
            self._open_file().write(data)
            self._audio_bytes += len(data)

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            self._file = self._path.open("wb")
            if self._format is AudioFormat.WAV:
                self._file.write(self._wav_header())
        return self._file

    def _wav_header(self) -> bytes:
        assert self._queue is not None
        return wav_header(self._queue.encoder.sample_rate, samples=self._audio_bytes // 2)


class PipeSink:
    """Raw s16le to a descriptor (standard output). Raises BrokenPipeError when nobody reads any more.

    Waits for room without a thread, and without making the descriptor non-blocking: others may share it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)

    async def write(self, samples: Samples, sample_rate: int) -> None:
        data = memoryview(to_s16(samples).tobytes())
        while data:
            if self._waits:
                await self._writable()
            # A pipe with room takes this much at once.
            data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]

    async def finish(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The descriptor belongs to the process."""

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_writer(self._descriptor, _set, ready)
        except PermissionError:  # a descriptor that is always ready, such as /dev/null
            self._waits = False
            return
        try:
            await ready
        finally:
            loop.remove_writer(self._descriptor)


class SpeakerSink:
    """The sound card, through sounddevice. Raises INVALID_VALUE if that, or a card, is missing."""

    def __init__(self) -> None:
        self._sounddevice = _import_sounddevice()
        self._loop = asyncio.get_running_loop()
        self._stream: Any = None
        self._lock = threading.Lock()
        self._queued: deque[Samples] = deque()
        self._queued_samples = 0
        self._sample_rate = 0
        self._ending = False
        self._room = asyncio.Event()
        self._ended = asyncio.Event()
        self.underruns = 0

    async def write(self, samples: Samples, sample_rate: int) -> None:
        with self._lock:
            self._queued.append(samples)
            self._queued_samples += len(samples)
        if self._stream is None:
            self._start(sample_rate)
        while self._queued_samples > SPEAKER_LEAD_S * self._sample_rate:
            self._room.clear()
            await self._room.wait()

    async def finish(self) -> None:
        if self._stream is not None:
            self._ending = True
            await self._ended.wait()
        self.close()

    def close(self) -> None:
        """Silent at once."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()
            stream.close()

    def _start(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        try:
            self._stream = self._sounddevice.OutputStream(
                samplerate=sample_rate,
                channels=1,
                dtype="float32",
                callback=self._play,
                finished_callback=lambda: self._wake(self._ended.set),
            )
            self._stream.start()
        except self._sounddevice.PortAudioError as error:
            raise _no_speakers(f"the speakers cannot be opened ({error})") from None

    def _play(self, out: Samples, frames: int, _time: Any, _status: Any) -> None:
        """On the sound card's thread."""
        with self._lock:
            filled = self._fill(out[:, 0])
        out[filled:, 0] = 0
        if filled < frames:
            if self._ending:
                raise self._sounddevice.CallbackStop
            self.underruns += 1
        self._wake(self._room.set)

    def _fill(self, out: Samples) -> int:
        filled = 0
        while filled < len(out) and self._queued:
            head = self._queued.popleft()
            part = head[: len(out) - filled]
            out[filled : filled + len(part)] = part
            filled += len(part)
            if len(part) < len(head):
                self._queued.appendleft(head[len(part) :])
        self._queued_samples -= filled
        return filled

    def _wake(self, callback: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)


def _import_sounddevice() -> Any:
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: the package is there, PortAudio is not
        raise _no_speakers(f"playing needs sounddevice, which is missing here ({error})") from None
    return sounddevice


def _no_speakers(what: str) -> StreamSynthError:
    message = f"{what}: pip install 'streamsynth[speakers]', and PortAudio (libportaudio2); or write to a file"
    return StreamSynthError(ErrorCode.INVALID_VALUE, message, param="output")


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
