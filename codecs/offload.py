"""Encoders on asyncio: the cheap ones on the loop, the others in threads, one at a time a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamsynth.codecs.encoder import AudioEncoder
from streamsynth.errors import ErrorCode, StreamSynthError

T = TypeVar("T")

PIECE_MS = 60
HEAD_MS = 120
TURN_MS = 500
"""How much is resampled on the loop before others have their turn: 1 ms of work."""


class EncodingLane:
    """A session's place in the thread pool: one call at a time, also after the waiter of the last one was cancelled.

    `executor` None is the loop's own pool.
    """

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor
        self._call: asyncio.Future[Any] | None = None

    async def idle(self) -> None:
        """Until no thread works for this lane. Returns without yielding to the loop after it has seen that."""
        while self._call is not None and not self._call.done():
            await asyncio.wait([self._call])

    def start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Hand `call` to a thread; the lane must be idle. It runs to its end, whoever stops waiting."""
        assert self._call is None or self._call.done(), "one call at a time"
        started = asyncio.get_running_loop().run_in_executor(self._executor, call)
        self._call = started
        started.add_done_callback(_retrieve)
        return started


def _retrieve(call: asyncio.Future[Any]) -> None:
    # A cancelled waiter leaves nobody to look at the outcome, which asyncio would log as forgotten.
    if not call.cancelled():
        call.exception()


class EncodingQueue:
    """Feeds one encoder, from one coroutine at a time, and owns it.

    pcm and wav are encoded on the loop: at once, or half a second a turn if they are resampled. Other formats go to a
    thread in pieces of at least 60 ms of media: what is shorter waits for more, except in the first 120 ms of a stream,
    where each call counts for the first audio. `lane` None: a lane of its own.
    """

    def __init__(self, encoder: AudioEncoder, lane: EncodingLane | None = None) -> None:
        self._encoder = encoder
        self._lane = EncodingLane() if lane is None else lane
        self._held: list[npt.NDArray[np.float32]] = []
        self._held_samples = 0
        self._taken_samples = 0
        self._call: asyncio.Future[bytes] | None = None
        self._closed = False

    @property
    def encoder(self) -> AudioEncoder:
        """For its format, rates and count; only the queue may call it."""
        return self._encoder

    async def encode(self, samples: npt.NDArray[np.float32]) -> bytes:
        """Append samples (kept until encoded, not copied); the bytes that are ready now, perhaps none.

        Raises what `AudioEncoder.encode` raises, or StreamSynthError(CANCELLED) if the queue is closed. Cancelling it
        closes the queue: a stream that has lost a piece cannot go on.
        """
        self._refuse_if_closed()
        if not self._encoder.blocking:
            return await self._in_turns(samples)
        self._held.append(samples)
        self._held_samples += len(samples)
        return await self._in_thread(self._encode_held) if self._worth_a_thread() else b""

    async def finish(self) -> bytes:
        """What is held, the rest of the audio and the container's end; then close. Raises as `encode` does."""
        self._refuse_if_closed()
        if self._encoder.blocking:
            rest = await self._in_thread(self._finish_held)
        else:
            rest = self._encoder.finish()
        self.close()
        return rest

    def close(self) -> None:
        """Give the encoder back, now or when the thread that uses it returns. Idempotent; never blocks or raises."""
        self._closed = True
        if self._call is None:
            self._held.clear()
            self._encoder.close()

    async def _in_turns(self, samples: npt.NDArray[np.float32]) -> bytes:
        encoder = self._encoder
        resamples = encoder.sample_rate != encoder.source_rate
        turn = TURN_MS * encoder.source_rate // 1_000 if resamples else max(len(samples), 1)
        encoded = [encoder.encode(samples[:turn])]
        try:
            for start in range(turn, len(samples), turn):
                await asyncio.sleep(0)
                self._refuse_if_closed()
                encoded.append(encoder.encode(samples[start : start + turn]))
        except asyncio.CancelledError:
            self.close()
            raise
        return b"".join(encoded)

    def _worth_a_thread(self) -> bool:
        head = self._taken_samples * 1_000 < HEAD_MS * self._encoder.source_rate
        return head or self._held_samples * 1_000 >= PIECE_MS * self._encoder.source_rate

    async def _in_thread(self, call: Callable[[], bytes]) -> bytes:
        try:
            await self._lane.idle()
            self._refuse_if_closed()
            self._call = handed = self._lane.start(call)
            handed.add_done_callback(self._thread_returned)
            await asyncio.wait([handed])
        except asyncio.CancelledError:
            self.close()
            raise
        self._refuse_if_closed()
        return handed.result()

    def _thread_returned(self, _call: asyncio.Future[bytes]) -> None:
        self._call = None
        if self._closed:
            self.close()

    def _encode_held(self) -> bytes:
        piece = np.concatenate(self._held) if self._held else np.zeros(0, dtype=np.float32)
        self._held.clear()
        self._held_samples = 0
        self._taken_samples += len(piece)
        return self._encoder.encode(piece)

    def _finish_held(self) -> bytes:
        return self._encode_held() + self._encoder.finish()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StreamSynthError(ErrorCode.CANCELLED, "the encoder was closed before its stream ended")
