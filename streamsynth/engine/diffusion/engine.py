"""Whole clips on one device, in order of arrival: as many at once as the model has room for, a step at a time."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from streamsynth.engine.diffusion.clip import Clip, ClipModel
from streamsynth.engine.diffusion.envelope import Envelope, check_request, settle, within
from streamsynth.engine.diffusion.output import HostCopy, OutputThread
from streamsynth.engine.stream import Emission, StepResult, Stream, as_error
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import ChunkReport, Interaction, Notice, Progress
from streamsynth.video import VideoRequest

PIECE_BYTES = 4 << 20
"""Of pictures in one emission, or one picture where that is larger."""

MAX_COPIES = 2
"""Finished clips whose pictures may still be on the device: a bound, since each keeps its memory."""

LOOK_AGAIN_S = 0.001
"""How soon to ask again for what another thread is about to finish."""


class ClipStream:
    """One request: waiting, then being made, then copied to the host, then handed out in pieces."""

    def __init__(self, engine: ClipEngine, request: VideoRequest) -> None:
        self.request = request
        self.clip: Clip | None = None
        self.copy: HostCopy | None = None
        self.told = 0
        self.given = 0
        self._engine = engine

    @property
    def making(self) -> bool:
        return self.clip is not None and self.copy is None

    def interact(self, interaction: Interaction) -> tuple[Notice, ...]:
        message = "a whole clip cannot be steered while it is made"
        raise StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, message, param="interaction")

    def finish(self) -> None:
        """No interactions come, which none could; the clip is made to its end."""

    def wake_at(self) -> float | None:
        if self.clip is None:
            return self._engine.turn_at(self)
        if self.making and not self.clip.ready:
            return time.monotonic() + LOOK_AGAIN_S
        if self.copy is not None and not self.copy.done:
            return time.monotonic() + LOOK_AGAIN_S
        return 0.0

    def step(self) -> Emission | None:
        raise AssertionError("clips are stepped together")

    def interrupt(self) -> None:
        """A step runs to its end."""

    def close(self) -> None:
        self._engine.forget(self)


class ClipEngine:
    """Serves `model`; what does not fit `envelope` is refused where it is opened, and others go on."""

    whole_clips = True

    def __init__(
        self,
        model: ClipModel,
        envelope: Envelope,
        measured: Mapping[str, int] | None = None,
        outputs: OutputThread | None = None,
    ) -> None:
        self.traits = within(model.traits, envelope)
        self._model = model
        self._envelope = envelope
        self._measured = dict(measured or {})
        self._outputs = outputs or OutputThread(model.device)
        self._streams: set[ClipStream] = set()
        self._waiting: deque[ClipStream] = deque()
        self._steps = self._clips = 0

    def open(self, request: Mapping[str, Any]) -> ClipStream:
        asked = settle(VideoRequest.from_wire(dict(request)), self.traits)
        check_request(asked, self.traits, self._envelope)
        self._model.check(asked)
        if asked.seed is None:
            asked = replace(asked, seed=secrets.randbits(63))
        stream = ClipStream(self, asked)
        self._streams.add(stream)
        self._waiting.append(stream)
        return stream

    def turn_at(self, stream: ClipStream) -> float | None:
        """When a waiting request can begin: now, soon, or None while that depends on others' ends."""
        place = self._waiting.index(stream)
        if place < self._model.room and self._copies() < MAX_COPIES:
            return 0.0
        if place:
            return None
        held = sum(each.making for each in self._streams)
        leaving = held < self._model.capacity or self._copies() >= MAX_COPIES
        return time.monotonic() + LOOK_AGAIN_S if leaving else None

    def step(self, streams: Sequence[Stream]) -> StepResult:
        asked = [stream for stream in streams if isinstance(stream, ClipStream)]
        began = self._begin(asked)
        making = [stream for stream in asked if stream.making]
        clips = [stream.clip for stream in making if stream.clip is not None]
        if clips:
            self._steps += 1
            self._model.advance(clips)
        made: list[tuple[Stream, Emission | StreamSynthError]] = []
        for stream in making:
            made.extend((stream, each) for each in self._tell(stream))
        for stream in asked:
            piece = self._hand_out(stream)
            if piece is not None:
                made.append((stream, piece))
        # What a clip costs says nothing of when it must be there: nobody plays it while it is made.
        return StepResult(made, worked=bool(began or clips or made), shares=())

    def forget(self, stream: ClipStream) -> None:
        self._streams.discard(stream)
        if stream in self._waiting:
            self._waiting.remove(stream)
        if stream.clip is not None:
            stream.clip.close()

    def counters(self) -> dict[str, int]:
        return {
            "live": len(self._streams),
            "waiting": len(self._waiting),
            "clips": self._clips,
            "steps": self._steps,
            "envelope_pixels": self._envelope.volume,
            **self._measured,
            **self._model.counters(),
        }

    def close(self) -> None:
        for stream in list(self._streams):
            self.forget(stream)
        self._outputs.close()
        self._model.close()

    def _copies(self) -> int:
        return sum(stream.copy is not None and not stream.copy.done for stream in self._streams)

    def _begin(self, asked: Sequence[ClipStream]) -> int:
        """In order of arrival. Returns how many."""
        began = 0
        while self._waiting and self._waiting[0] in asked and self._model.room and self._copies() < MAX_COPIES:
            stream = self._waiting.popleft()
            stream.clip = self._model.begin(stream.request)
            began += 1
        return began

    def _tell(self, stream: ClipStream) -> list[Emission | StreamSynthError]:
        """How far a clip has come, if further than was said; its end, if it failed; its copy begins, if it is done."""
        clip = stream.clip
        assert clip is not None
        if clip.error is not None:
            return [as_error(clip.error)]
        told: list[Emission | StreamSynthError] = []
        if clip.step > stream.told:
            stream.told = clip.step
            notices = (Progress(clip.step, clip.steps),)
            told.append(
                Emission(self._none(stream), self.traits.fps, report=ChunkReport(0, last=False), notices=notices)
            )
        if clip.pictures is not None:
            pictures, clip.pictures = clip.pictures, None
            self._clips += 1
            try:
                check_shape(pictures, stream.request)
            except StreamSynthError as error:
                return [error]
            stream.copy = self._outputs.begin(pictures)
        return told

    def _hand_out(self, stream: ClipStream) -> Emission | StreamSynthError | None:
        """The next piece of a clip that is on the host."""
        copy = stream.copy
        if copy is None or not copy.done:
            return None
        if copy.error is not None or copy.pictures is None:
            return as_error(copy.error or RuntimeError("no pictures"))
        pictures = copy.pictures
        count = max(1, PIECE_BYTES // pictures[0].nbytes)
        piece = pictures[stream.given : stream.given + count]
        stream.given += len(piece)
        final = stream.given == len(pictures)
        report = ChunkReport(0, last=final)
        return Emission(piece, self.traits.fps, report=report, final=final, finish_reason="length")

    @staticmethod
    def _none(stream: ClipStream) -> npt.NDArray[np.uint8]:
        return np.zeros((0, stream.request.height, stream.request.width, 3), np.uint8)


def check_shape(pictures: Tensor, request: VideoRequest) -> None:
    """Raises ENGINE_FAILED for pictures that are not those that were asked for."""
    due = (request.num_frames, request.height, request.width, 3)
    if tuple(pictures.shape) != due:
        message = f"the model made pictures of {tuple(pictures.shape)}; {due} were due"
        raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
