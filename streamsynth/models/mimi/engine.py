"""A codec stage: code frames of many streams in, samples out, decoded together where they are ready together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamsynth.engine.stream import StepResult, Stream
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.mimi.captured import CapturedDecoder
from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.joins import Joiner
from streamsynth.models.mimi.pace import Pace
from streamsynth.models.mimi.stream import MAX_FRAMES, CodecStream


class _Decoding(Protocol):
    def reset(self, slot: int) -> None: ...

    def __call__(self, codes: Tensor, slots: Sequence[int]) -> Tensor:
        """codes (streams, codebooks, frames) int64 to samples (streams, samples) float32, both on the CPU."""


class _PlainDecoder:
    def __init__(self, decoder: MimiDecoder, slots: int) -> None:
        self._decoder = decoder
        self._state = decoder.open_state(slots, max_frames=MAX_FRAMES)

    def reset(self, slot: int) -> None:
        self._state.reset(slot)

    def __call__(self, codes: Tensor, slots: Sequence[int]) -> Tensor:
        samples: Tensor = self._decoder(codes, self._state, rows=torch.tensor(slots))
        return samples


class MimiEngine:
    """Decodes up to `max_streams` streams. `gain` multiplies the samples: some voices were trained quiet.

    A request's `speed` is kept by stretching what was decoded. A passage is decoded as if it stood alone; with `shapes`
    it starts where it can be heard, and does not break off. A frame arrives as `frame_units` units. A talker's
    vocabulary may be larger than a codebook, by marks that a trained one never draws within speech: they sound as 0.
    """

    def __init__(
        self,
        decoder: MimiDecoder,
        *,
        sample_rate: int,
        max_streams: int,
        gain: float = 1.0,
        shapes: bool = False,
        frame_units: int = 1,
    ) -> None:
        self.sample_rate = sample_rate
        self.codebooks = decoder.config.num_quantizers
        self.frame_units = frame_units
        self._codes = decoder.config.codebook_size
        self.frame_samples = decoder.config.frame_samples
        self.pace = Pace()
        self._shapes = shapes
        self._gain = gain
        self._decoding: _Decoding = (
            CapturedDecoder(decoder, slots=max_streams, frames=range(1, MAX_FRAMES + 1))
            if decoder.device.type == "cuda"
            else _PlainDecoder(decoder, max_streams)
        )
        self._free = list(range(max_streams - 1, -1, -1))
        self._frames = 0
        self._steps = 0

    def open(self, request: Mapping[str, Any]) -> CodecStream:
        if not self._free:
            raise StreamSynthError(ErrorCode.OVERLOADED, "every stream of the codec is taken", retry_after_ms=1000)
        slot = self._free.pop()
        self._decoding.reset(slot)
        tokens = request.get("max_new_tokens")
        limit = None if tokens is None else tokens * self.frame_samples
        return CodecStream(self, slot, request.get("speed", 1.0), limit)

    def open_joiner(self) -> Joiner:
        return Joiner(self.sample_rate, shapes=self._shapes)

    def reset(self, stream: CodecStream) -> None:
        """Let its next frames be decoded as the first of a stream."""
        self._decoding.reset(stream.slot)

    def free(self, stream: CodecStream) -> None:
        self._free.append(stream.slot)

    def step(self, streams: Sequence[Stream]) -> StepResult:
        """Decode the neediest stream's frames, and as many of each other stream that has so many."""
        ready = [stream for stream in streams if isinstance(stream, CodecStream)]
        frames = ready[0].ready_frames
        if frames:
            together = [stream for stream in ready if stream.ready_frames >= frames]
            decoded = self._decode(together, frames)
        else:
            together, decoded = ready[:1], np.zeros((1, 0), np.float32)
        emitted = [(stream, stream.emit(row)) for stream, row in zip(together, decoded, strict=True)]
        return StepResult([(stream, emission) for stream, emission in emitted if emission is not None])

    def _decode(self, streams: Sequence[CodecStream], frames: int) -> npt.NDArray[np.float32]:
        codes = torch.from_numpy(np.stack([stream.take(frames) for stream in streams])).transpose(1, 2)
        codes = torch.where(codes < self._codes, codes, 0)
        samples = self._decoding(codes, [stream.slot for stream in streams])
        self._frames += frames * len(streams)
        self._steps += 1
        audio: npt.NDArray[np.float32] = (samples * self._gain).numpy()
        return audio

    def counters(self) -> dict[str, int]:
        return {"free_slots": len(self._free), "frames": self._frames, "steps": self._steps}

    def close(self) -> None:
        pass
