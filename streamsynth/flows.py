"""What one request is to its caller while it is made: an utterance that takes text, a video that takes interactions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Chunk
from streamsynth.graph.edge import BrokenEdge, ClosedEdge, EdgeStatistics, EndOfEdge, WouldBlock
from streamsynth.graph.flow import End, Flow, Node, Status, Wire
from streamsynth.interactions.messages import ChunkReport, Interaction, Notice
from streamsynth.speech import MAX_TEXT_CHARACTERS, AudioChunk, SpeechRequest
from streamsynth.video import VideoChunk, VideoRequest
from streamsynth.workers.stage import StageRequest, WorkerStage

logger = logging.getLogger(__name__)

MAX_UNSENT_INTERACTIONS = 256
"""How many may be on their way to a worker that does not take them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one request ended; exactly one comes of each flow.

    `finish_reason` is "stop" or "length" if it completed, `error` is set if it failed. `units` are the samples or
    pictures that were made. An input token is a character of text; an output token is what the model's traits say.
    """

    status: Status
    finish_reason: str | None = None
    error: StreamSynthError | None = None
    units: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class RequestFlow:
    """One request through the stages of a pipeline. Receiving from it is what lets the worker make more."""

    kind: ClassVar[str]
    id_prefix: ClassVar[str]
    input_name: ClassVar[str]
    input_capacity: ClassVar[int]

    def __init__(
        self,
        number: int,
        pipeline: Pipeline,
        stages: Mapping[str, WorkerStage],
        request: Mapping[str, Any],
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        self.id = f"{self.id_prefix}-{number:x}-{secrets.token_hex(4)}"
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._cancelled = False
        self._making = _reserve(number, stages.values(), request, on_notice)
        self._flow = Flow(
            [Node(name, making.run) for name, making in zip(stages, self._making, strict=True)],
            self._wires(pipeline, stages),
        )
        self._flow.outcome.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Stop at once and drop what is queued. Idempotent; does nothing after the end."""
        self._cancelled = True
        self._flow.cancel()

    @property
    def entered(self) -> bool:
        """Whether a worker has had anything of it; until then it was in line."""
        return any(making.entered for making in self._making)

    async def idle(self) -> None:
        """Return when the workers hold nothing of this request any more, at most one step after its end."""
        for making in self._making:
            await making.idle.wait()

    def lead(self) -> EdgeStatistics:
        """What has been made and not yet received, in units of media."""
        return self._flow.outputs["media"].statistics()

    async def _receive(self) -> Chunk:
        try:
            chunk: Chunk = await self._flow.outputs["media"].receive()
        except ClosedEdge:
            raise self._cancelled_error() from None
        except BrokenEdge as broken:
            await asyncio.shield(self.outcome)
            raise self.outcome.result().error or self._cancelled_error() from broken.cause
        return chunk

    def _cancelled_error(self) -> StreamSynthError:
        return StreamSynthError(ErrorCode.CANCELLED, f"the {self.kind} was cancelled")

    @staticmethod
    def _input_cost(_: Any) -> int:
        return 1

    def _wires(self, pipeline: Pipeline, stages: Mapping[str, WorkerStage]) -> list[Wire]:
        """The input goes to each stage that declares none; what the output stage makes goes to the reader."""
        wires = [
            Wire(source=self.input_name, target=stage.name, capacity=self.input_capacity, cost=self._input_cost)
            for stage in pipeline.stages
            if not stage.inputs
        ]
        links = [(source, stage.name) for stage in pipeline.stages for source in stage.inputs]
        for source, target in [*links, (pipeline.output, "media")]:
            deployment = stages[source].deployment
            lead = max(1, round(deployment.lead_seconds * deployment.stage.rate))
            wires.append(Wire(source=source, target=target, capacity=lead, cost=lambda chunk: chunk.units))
        return wires

    def _finish(self, future: asyncio.Future[End]) -> None:
        for making in self._making:
            making.settle()
        end = future.result()
        if end.error is not None and end.error.code is ErrorCode.INTERNAL_ERROR:
            logger.error("%s %s failed", self.kind, self.id, exc_info=end.error)
        # What was made: the reader may not have come to all of it yet.
        self.outcome.set_result(self._outcome(end, self.lead().sent_cost))

    def _outcome(self, end: End, units: int) -> Outcome:
        reason = self._finish_reason() if end.status is Status.COMPLETED else None
        return Outcome(status=end.status, finish_reason=reason, error=end.error, units=units)

    def _finish_reason(self) -> str:
        reasons = {making.finish_reason for making in self._making}
        return "length" if "length" in reasons else "stop"


class SpeechFlow(RequestFlow):
    """One utterance being made."""

    kind = "utterance"
    id_prefix = "utt"
    input_name = "text"
    input_capacity = MAX_TEXT_CHARACTERS

    def __init__(
        self, number: int, pipeline: Pipeline, stages: Mapping[str, WorkerStage], request: SpeechRequest
    ) -> None:
        self._traits = pipeline.speech
        self._characters = 0
        super().__init__(number, pipeline, stages, request.to_wire())

    def send_text(self, text: str) -> None:
        """Append text, byte-exact; ignored once the utterance has ended.

        Raises TEXT_TOO_LONG, with nothing appended, above MAX_TEXT_CHARACTERS in all; ClosedEdge after `finish_text`.
        """
        if self._characters + len(text) > MAX_TEXT_CHARACTERS:
            message = f"the text has {self._characters + len(text)} characters; the limit is {MAX_TEXT_CHARACTERS}"
            raise StreamSynthError(ErrorCode.TEXT_TOO_LONG, message, param="input")
        if text and not self._cancelled and not self.outcome.done():
            self._characters += len(text)
            # A broken edge: the utterance has failed, and `outcome` says why.
            with contextlib.suppress(BrokenEdge):
                self._flow.inputs["text"].send_nowait(text)

    def finish_text(self) -> None:
        """No more text will come."""
        self._flow.inputs["text"].close()

    async def receive(self) -> AudioChunk:
        """The next chunk. Raises EndOfEdge after the last one, else what ended the flow. Cancelled, it took nothing."""
        return self._audio(await self._receive())

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        while True:
            try:
                chunk = await self.receive()
            except EndOfEdge:
                return
            yield chunk

    @staticmethod
    def _input_cost(text: str) -> int:
        return len(text)

    def _audio(self, chunk: Chunk) -> AudioChunk:
        traits = self._traits
        if chunk.rate != traits.sample_rate:
            message = f"the engine made audio at {chunk.rate} Hz; the model declares {traits.sample_rate} Hz"
            self._flow.cancel()
            raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
        return AudioChunk(
            samples=chunk.array.astype(np.float32, copy=False),
            sample_rate=chunk.rate,
            first_sample=chunk.first_unit,
            segment=chunk.marks.get("segment", 0),
            segment_text=chunk.marks.get("segment_text"),
            segment_final=chunk.marks.get("segment_final", False),
            final=chunk.final,
        )

    def _outcome(self, end: End, units: int) -> Outcome:
        outcome = super()._outcome(end, units)
        tokens = -(-units // self._traits.token_samples)
        return replace(outcome, input_tokens=self._characters, output_tokens=tokens)


class VideoFlow(RequestFlow):
    """One video being made, and steered. What becomes of its interactions is told to `on_notice`, on the loop."""

    kind = "video"
    id_prefix = "video_stream"
    input_name = "interactions"
    input_capacity = MAX_UNSENT_INTERACTIONS

    def __init__(
        self,
        number: int,
        pipeline: Pipeline,
        stages: Mapping[str, WorkerStage],
        request: VideoRequest,
        on_notice: Callable[[Notice], None],
    ) -> None:
        self._shape = (request.height, request.width, 3)
        self._fps = pipeline.video.fps
        self.seed = request.seed
        super().__init__(number, pipeline, stages, request.to_wire(), on_notice)

    def interact(self, interaction: Interaction) -> None:
        """Steer from the next chunk on; ignored once the video has ended. Never blocks.

        Raises OVERLOADED if the worker has not taken MAX_UNSENT_INTERACTIONS; ClosedEdge after `finish`.
        """
        try:
            self._flow.inputs["interactions"].send_nowait(interaction)
        except BrokenEdge:
            return  # The video has failed, and `outcome` says why.
        except WouldBlock:
            message = f"{MAX_UNSENT_INTERACTIONS} interactions are on their way, the limit"
            raise StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=1000) from None

    def finish(self) -> None:
        """Begin no further chunk: what is in the making still comes, then the end."""
        self._flow.inputs["interactions"].close()

    async def receive(self) -> VideoChunk:
        """The next chunk. Raises EndOfEdge after the last one, else what ended the flow. Cancelled, it took nothing."""
        # An interaction before this call reaches the worker before the credit for another chunk that it returns.
        await asyncio.sleep(0)
        return self._video(await self._receive())

    def _video(self, chunk: Chunk) -> VideoChunk:
        pictures = chunk.array
        if chunk.rate != self._fps or pictures.dtype != np.uint8 or pictures.shape[1:] != self._shape:
            made = f"{pictures.dtype} pictures of {pictures.shape[1:]} at {chunk.rate} fps"
            message = f"the engine made {made}; uint8 of {self._shape} at {self._fps} were due"
            self._flow.cancel()
            raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
        report = msgspec.convert(chunk.marks["report"], ChunkReport)
        return VideoChunk(pictures, chunk.rate, chunk.first_unit, report, chunk.final)


def _reserve(
    number: int,
    stages: Iterable[WorkerStage],
    request: Mapping[str, Any],
    on_notice: Callable[[Notice], None] | None,
) -> list[StageRequest]:
    """A place in every stage, or the error of the first that has none and no place anywhere."""
    reserved: list[StageRequest] = []
    with contextlib.ExitStack() as undo:
        for stage in stages:
            making = StageRequest(stage, number, dict(request), on_notice)
            undo.callback(making.settle)
            reserved.append(making)
        undo.pop_all()
    return reserved
