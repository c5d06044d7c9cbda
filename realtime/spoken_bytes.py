"""One utterance as the bytes of one audio stream: pulls chunks from the flow, pushes them through the encoder."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import NamedTuple, Self

from streamsynth.codecs import EncodingQueue
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import Outcome, SpeechFlow

_SAMPLE_BYTES = 2


class Piece(NamedTuple):
    """Bytes that are ready, and how many samples of audio went into the stream since the last piece."""

    data: bytes
    samples: int


class SpokenBytes:
    """Owns the flow and the encoder: leaving the context cancels the one and closes the other, whatever happened."""

    def __init__(self, flow: SpeechFlow, encoding: EncodingQueue) -> None:
        self.flow = flow
        self._encoding = encoding
        self._samples = 0
        self._ended = False

    async def next(self, *, held_bytes: int | None = None) -> Piece | None:
        """The next piece, or None after the last. Reading on is what lets the engine make more.

        An utterance without audio gives one piece, its empty container. Raises what ended the flow or the encoder, and
        `text_too_long` when a file that is held until it is finished grows beyond `held_bytes`.
        """
        data = b""
        while not data and not self._ended:
            data = await self._advance()
            if held_bytes is not None and self._encoding.encoder.samples * _SAMPLE_BYTES > held_bytes:
                message = f"the finished file is larger than {held_bytes} bytes, the limit; stream: true has none"
                raise StreamSynthError(ErrorCode.TEXT_TOO_LONG, message, param="input")
        if not data:
            return None
        before, self._samples = self._samples, self._encoding.encoder.samples
        return Piece(data, self._samples - before)

    def lead_s(self) -> float:
        """Seconds of audio that have been made and not yet taken."""
        return self.flow.lead().queued_cost / self._encoding.encoder.source_rate

    async def outcome(self) -> Outcome:
        """How the flow ended; raises its error if it failed after the last chunk."""
        outcome = await asyncio.shield(self.flow.outcome)
        if outcome.error is not None:
            raise outcome.error
        return outcome

    async def _advance(self) -> bytes:
        chunk = await self.flow.receive()
        data = await self._encoding.encode(chunk.samples)
        if chunk.final:
            self._ended = True
            data += await self._encoding.finish()
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flow.cancel()
        self._encoding.close()
