"""An utterance that a server makes: what was received of it and not read, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import numpy as np

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import Outcome
from streamsynth.graph.edge import EndOfEdge
from streamsynth.graph.flow import Status
from streamsynth.speech import AudioChunk

_FULL_SCALE = np.float32(32768)


class Link(Protocol):
    """What an utterance needs of its connection. Nothing here waits."""

    sample_rate: int
    text_characters: int

    def post_text(self, utterance: RemoteUtterance, text: str) -> None: ...

    def post_flush(self, utterance: RemoteUtterance) -> None: ...

    def post_cancel(self, utterance: RemoteUtterance) -> None: ...

    def count_unread(self, media_ns: int) -> None:
        """So much more was received and not read, or (negative) read or dropped."""


class RemoteUtterance:
    """The caller's half (`send_text`, `finish_text`, `receive`, `cancel`) and the wire's half (the rest).

    `index` is the server's, None until something of the utterance was sent.
    """

    def __init__(self, link: Link) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.index: int | None = None
        self._link = link
        self._characters = 0
        self._chunks: deque[AudioChunk] = deque()
        self._sample_rate = link.sample_rate
        self._samples = 0
        self._segment = 0
        self._segment_samples = 0
        self._segment_text: str | None = None
        self._arrived = asyncio.Event()
        self._error: StreamSynthError | None = None
        self._cancelled = False

    # The caller's half

    def send_text(self, text: str) -> None:
        characters = self._characters + len(text)
        if characters > self._link.text_characters:
            message = f"the text has {characters} characters; the limit is {self._link.text_characters}"
            raise StreamSynthError(ErrorCode.TEXT_TOO_LONG, message, param="text")
        self._characters = characters
        if not self.outcome.done():
            self._link.post_text(self, text)

    def finish_text(self) -> None:
        if not self.outcome.done():
            self._link.post_flush(self)

    async def receive(self) -> AudioChunk:
        while not self._chunks:
            if self.outcome.done() and (error := self.outcome.result().error) is not None:
                raise error
            if self._cancelled:
                raise StreamSynthError(ErrorCode.CANCELLED, "the utterance was cancelled")
            if self.outcome.done():
                raise EndOfEdge
            self._arrived.clear()
            await self._arrived.wait()
        chunk = self._chunks.popleft()
        self._link.count_unread(-_media_ns(chunk))
        return chunk

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._drop_unread()
            if not self.outcome.done():
                self._link.post_cancel(self)

    # The wire's half

    def start_segment(self, index: int, text: str | None, sample_rate: int) -> None:
        self._segment, self._segment_text, self._segment_samples = index, text, 0
        self._sample_rate = sample_rate

    def take_audio(self, data: bytes) -> None:
        """s16le, whole samples."""
        if len(data) % 2:
            raise StreamSynthError(ErrorCode.INTERNAL_ERROR, f"the server sent {len(data)} bytes as whole samples")
        samples = np.frombuffer(data, "<i2").astype(np.float32) / _FULL_SCALE
        self._segment_samples += len(samples)
        self._put(AudioChunk(samples, self._sample_rate, self._samples, self._segment, self._segment_text))
        self._samples += len(samples)
        self._segment_text = None

    def end_segment(self, total_samples: int) -> None:
        self._check_total(total_samples, self._segment_samples)
        nothing = np.zeros(0, np.float32)
        self._put(AudioChunk(nothing, self._sample_rate, self._samples, self._segment, segment_final=True))

    def note_failure(self, error: StreamSynthError) -> None:
        """Why the `session.done` that follows says failed."""
        self._error = error

    def refuse(self, error: StreamSynthError) -> None:
        """The server did not take some of the text: half of it is not spoken."""
        self.cancel()
        self.finish(Outcome(status=Status.FAILED, error=error))

    def end(self, status: Status, finish_reason: str | None, total_samples: int) -> None:
        if status is Status.COMPLETED:
            self._check_total(total_samples, self._samples)
            nothing = np.zeros(0, np.float32)
            self._put(AudioChunk(nothing, self._sample_rate, self._samples, self._segment, final=True))
        error = None
        if status is Status.FAILED:
            error = self._error or StreamSynthError(ErrorCode.INTERNAL_ERROR, "the server did not say what failed")
        self.finish(Outcome(status=status, finish_reason=finish_reason, error=error, units=self._samples))

    def finish(self, outcome: Outcome) -> None:
        """The one terminal event; what was received before it can still be read."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)
        self._arrived.set()

    def abandon(self) -> None:
        """The session is closed: end as cancelled, without a word to the server."""
        self._cancelled = True
        self._drop_unread()
        self.finish(Outcome(status=Status.CANCELLED, units=self._samples))

    def _put(self, chunk: AudioChunk) -> None:
        if not self._cancelled:
            self._chunks.append(chunk)
            self._link.count_unread(_media_ns(chunk))
            self._arrived.set()

    def _drop_unread(self) -> None:
        self._link.count_unread(-sum(_media_ns(chunk) for chunk in self._chunks))
        self._chunks.clear()
        self._arrived.set()

    def _check_total(self, said: int, received: int) -> None:
        if said != received:
            message = f"the server counted {said} samples, {received} arrived"
            raise StreamSynthError(ErrorCode.INTERNAL_ERROR, message)


def _media_ns(chunk: AudioChunk) -> int:
    return len(chunk.samples) * 1_000_000_000 // chunk.sample_rate
