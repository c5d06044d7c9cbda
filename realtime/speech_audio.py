"""From an utterance's chunks to what the socket sends: containers (`audio.start` .. `audio.done`) of binary frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamsynth.codecs import AudioEncoder, AudioFormat, EncodingLane, EncodingQueue, open_encoder
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.session_config import SessionSettings
from streamsynth.realtime.speech_events import Audio, ContainerEnd, ContainerStart, Piece
from streamsynth.speech import AudioChunk

FRAME_MS = 100
"""The most audio in one frame of a stream: what a cancel cannot take back once the transport has it."""

_SAMPLE_BYTES = 2


class UtteranceAudio:
    """Encodes one utterance, for one coroutine at a time. `close` when done, however it ended."""

    def __init__(self, settings: SessionSettings, source_rate: int, *, lane: EncodingLane, limits: Limits) -> None:
        speech = settings.speech
        gapless = speech.format is AudioFormat.PCM
        encoders = _Encoders(speech.format, source_rate, speech.sample_rate, settings.stream_audio, lane)
        self._containers: _Containers = _GaplessContainers(encoders) if gapless else _SeparateContainers(encoders)
        self._source_rate = source_rate
        self._streamed = settings.stream_audio
        self._cutter = _Cutter(speech.format, speech.sample_rate, limits.outbound_message_bytes)
        self._file: list[Audio] = []
        self._file_samples = 0
        self._max_file_samples = limits.finished_file_bytes // _SAMPLE_BYTES * source_rate // speech.sample_rate

    async def add(self, chunk: AudioChunk) -> list[Piece]:
        """What can be sent because of this chunk. Raises StreamSynthError; cancelled, the utterance cannot go on."""
        if chunk.sample_rate != self._source_rate:
            message = f"the engine made {chunk.sample_rate} Hz after {self._source_rate} Hz in one utterance"
            raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
        if not self._streamed:
            self._hold(chunk)
        return self._framed(await self._containers.add(chunk))

    async def finish(self) -> list[Piece]:
        """What was held back, when no more chunks come. Raises and is cancelled as `add`."""
        return self._framed(await self._containers.finish())

    def close(self) -> None:
        self._containers.close()

    def _hold(self, chunk: AudioChunk) -> None:
        """Bound what is kept until a file is finished; a sentence is a file of its own."""
        self._file_samples += len(chunk.samples)
        if self._file_samples > self._max_file_samples:
            seconds = self._max_file_samples // self._source_rate
            message = f"the finished file is longer than {seconds} s, the limit; stream_audio: true has none"
            raise StreamSynthError(ErrorCode.TEXT_TOO_LONG, message, param="text")
        if chunk.segment_final:
            self._file_samples = 0

    def _framed(self, pieces: list[Piece]) -> list[Piece]:
        framed: list[Piece] = []
        for piece in pieces:
            if not isinstance(piece, Audio):
                if isinstance(piece, ContainerEnd) and not self._streamed:
                    framed += self._cutter.cut(_joined(self._file), whole_file=True)
                    self._file.clear()
                framed.append(piece)
            elif self._streamed:
                framed += self._cutter.cut(piece, whole_file=False)
            else:
                self._file.append(piece)
        return framed


def _joined(parts: list[Audio]) -> Audio:
    return Audio(b"".join(part.data for part in parts), sum(part.samples for part in parts))


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts encoded audio into frames, and shares its samples out among them: exactly for pcm and wav, else by bytes."""

    format: AudioFormat
    sample_rate: int
    max_bytes: int

    def cut(self, audio: Audio, *, whole_file: bool) -> Iterator[Audio]:
        exact = self.format in (AudioFormat.PCM, AudioFormat.WAV)
        header = len(audio.data) - audio.samples * _SAMPLE_BYTES if exact else 0
        body = len(audio.data) - header
        count = -(-len(audio.data) // (self.max_bytes - header - _SAMPLE_BYTES))
        if not whole_file:
            count = max(count, -(-audio.samples * 1_000 // (FRAME_MS * self.sample_rate)))
        view = memoryview(audio.data)
        bounds = [body * number // count // _SAMPLE_BYTES * _SAMPLE_BYTES for number in range(count)] + [body]
        for start, end in pairwise(bounds):
            samples = audio.samples * end // body - audio.samples * start // body if body else 0
            yield Audio(view[header + start if start else 0 : header + end], samples)


class _Encoders:
    """Opens encoders, each in a queue on the session's lane."""

    def __init__(
        self, audio_format: AudioFormat, source_rate: int, sample_rate: int, live: bool, lane: EncodingLane
    ) -> None:
        self.format = audio_format
        self.source_rate = source_rate
        self.sample_rate = sample_rate
        self._live = live
        self._lane = lane

    def open(self) -> EncodingQueue:
        encoder = open_encoder(self.format, source_rate=self.source_rate, sample_rate=self.sample_rate, live=self._live)
        return EncodingQueue(encoder, self._lane)

    def start(self, text: str | None) -> ContainerStart:
        return ContainerStart(text, self.format.value, self.sample_rate, AudioEncoder.channels)


class _Containers(Protocol):
    async def add(self, chunk: AudioChunk) -> list[Piece]: ...

    async def finish(self) -> list[Piece]: ...

    def close(self) -> None: ...


class _SeparateContainers:
    """One encoder, and so one file or stream, for each segment. A segment without samples is no container."""

    def __init__(self, encoders: _Encoders) -> None:
        self._encoders = encoders
        self._queue: EncodingQueue | None = None
        self._text: str | None = None
        self._counted = 0

    async def add(self, chunk: AudioChunk) -> list[Piece]:
        pieces: list[Piece] = []
        if chunk.segment_text is not None:
            self._text = chunk.segment_text
        if len(chunk.samples):
            pieces += await self._encode(chunk.samples)
        if chunk.segment_final or chunk.final:
            pieces += await self.finish()
        return pieces

    async def _encode(self, samples: npt.NDArray[np.float32]) -> list[Piece]:
        pieces: list[Piece] = []
        if self._queue is None:
            self._queue = self._encoders.open()
            self._counted = 0
            pieces.append(self._encoders.start(self._text))
        return pieces + self._counted_audio(self._queue, await self._queue.encode(samples))

    async def finish(self) -> list[Piece]:
        self._text = None
        if self._queue is None:
            return []
        rest = self._counted_audio(self._queue, await self._queue.finish())
        self._queue = None
        return [*rest, ContainerEnd()]

    def _counted_audio(self, queue: EncodingQueue, data: bytes) -> list[Piece]:
        if not data:
            return []  # its samples are counted with the bytes that carry them
        samples = queue.encoder.samples - self._counted
        self._counted = queue.encoder.samples
        return [Audio(data, samples)]

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()


@dataclass(slots=True)
class _Segment:
    text: str | None
    end: int | None = None
    started: bool = False


class _GaplessContainers:
    """One pcm stream through the whole utterance, cut where the segments end: no seam, whatever the resampler holds.

    What it holds back of a segment's end comes with the next segment's start.
    """

    def __init__(self, encoders: _Encoders) -> None:
        self._encoders = encoders
        self._queue = encoders.open()
        self._segments: deque[_Segment] = deque()
        self._sent = 0

    async def add(self, chunk: AudioChunk) -> list[Piece]:
        # An end that comes by itself belongs to the segment before: what the resampler still holds is of that one.
        if len(chunk.samples) or not chunk.final:
            self._note(chunk)
        return self._shared_out(await self._queue.encode(chunk.samples))

    def _note(self, chunk: AudioChunk) -> None:
        if not self._segments or self._segments[-1].end is not None:
            self._segments.append(_Segment(chunk.segment_text))
        segment = self._segments[-1]
        if segment.text is None:
            segment.text = chunk.segment_text
        if chunk.segment_final:
            end = chunk.first_sample + len(chunk.samples)
            segment.end = end * self._encoders.sample_rate // self._encoders.source_rate

    async def finish(self) -> list[Piece]:
        rest = await self._queue.finish()
        if self._segments:
            self._segments[-1].end = self._queue.encoder.samples
        return self._shared_out(rest)

    def _shared_out(self, data: bytes) -> list[Piece]:
        pieces: list[Piece] = []
        view = memoryview(data)
        while self._segments:
            segment = self._segments[0]
            ready = len(view) // _SAMPLE_BYTES
            samples = ready if segment.end is None else min(ready, segment.end - self._sent)
            if samples > 0:
                if not segment.started:
                    segment.started = True
                    pieces.append(self._encoders.start(segment.text))
                pieces.append(Audio(view[: samples * _SAMPLE_BYTES], samples))
                view = view[samples * _SAMPLE_BYTES :]
                self._sent += samples
            if segment.end is None or self._sent < segment.end:
                break
            self._segments.popleft()
            if segment.started:
                pieces.append(ContainerEnd())
        return pieces

    def close(self) -> None:
        self._queue.close()
