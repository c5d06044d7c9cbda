"""The running pipelines of this process. The server and the local Python API both make their speech here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamsynth.config.deployment import Deployment
from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Chunk
from streamsynth.graph.edge import BrokenEdge, ClosedEdge, EdgeStatistics, EndOfEdge
from streamsynth.graph.flow import End, Flow, Node, Status, Wire
from streamsynth.speech import MAX_TEXT_CHARACTERS, AudioChunk, SpeechRequest
from streamsynth.workers.launchers import Launcher, ProcessLauncher
from streamsynth.workers.stage import StageRequest, StageStatistics, WorkerStage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one utterance ended; exactly one comes of each flow.

    `finish_reason` is "stop" or "length" if it completed, `error` is set if it failed. An input token is a character of
    text; an output token is what the model's traits say.
    """

    status: Status
    finish_reason: str | None = None
    error: StreamSynthError | None = None
    samples: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeStatistics:
    live_flows: int
    stages: Mapping[str, StageStatistics]


class SpeechFlow:
    """One utterance being made. Reading it with `receive` is what lets the worker make more."""

    def __init__(
        self, number: int, pipeline: Pipeline, stages: Mapping[str, WorkerStage], request: SpeechRequest
    ) -> None:
        self.id = f"utt-{number:x}-{secrets.token_hex(4)}"
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._traits = pipeline.speech
        self._characters = 0
        self._samples = 0
        self._cancelled = False
        self._making = _reserve(number, stages.values(), request)
        self._flow = Flow(
            [Node(name, making.run) for name, making in zip(stages, self._making, strict=True)],
            _wires(pipeline, stages),
        )
        self._flow.outcome.add_done_callback(self._finish)

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
        try:
            chunk: Chunk = await self._flow.outputs["audio"].receive()
        except ClosedEdge:
            raise StreamSynthError(ErrorCode.CANCELLED, "the utterance was cancelled") from None
        except BrokenEdge as broken:
            await asyncio.shield(self.outcome)
            cancelled = StreamSynthError(ErrorCode.CANCELLED, "the utterance was cancelled")
            raise self.outcome.result().error or cancelled from broken.cause
        return self._audio(chunk)

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        while True:
            try:
                chunk = await self.receive()
            except EndOfEdge:
                return
            yield chunk

    def cancel(self) -> None:
        """Stop at once and drop what is queued. Idempotent; does nothing after the end."""
        self._cancelled = True
        self._flow.cancel()

    async def idle(self) -> None:
        """Return when the workers hold nothing of this utterance any more, at most one step after its end."""
        for making in self._making:
            await making.idle.wait()

    def lead(self) -> EdgeStatistics:
        """What has been made and not yet received, in samples."""
        return self._flow.outputs["audio"].statistics()

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

    def _finish(self, future: asyncio.Future[End]) -> None:
        for making in self._making:
            making.settle()
        end = future.result()
        error = end.error
        # What was made: the reader may not have come to all of it yet.
        samples = self.lead().sent_cost
        if error is not None and error.code is ErrorCode.INTERNAL_ERROR:
            logger.error("utterance %s failed", self.id, exc_info=error)
        self.outcome.set_result(
            Outcome(
                status=end.status,
                finish_reason=self._finish_reason() if end.status is Status.COMPLETED else None,
                error=error,
                samples=samples,
                input_tokens=self._characters,
                output_tokens=-(-samples // self._traits.token_samples),
            )
        )

    def _finish_reason(self) -> str:
        reasons = {making.finish_reason for making in self._making}
        return "length" if "length" in reasons else "stop"


def _reserve(number: int, stages: Iterable[WorkerStage], request: SpeechRequest) -> list[StageRequest]:
    """A place in every stage, or the error of the first that has none and no place anywhere."""
    reserved: list[StageRequest] = []
    with contextlib.ExitStack() as undo:
        for stage in stages:
            making = StageRequest(stage, number, request.to_wire())
            undo.callback(making.settle)
            reserved.append(making)
        undo.pop_all()
    return reserved


def _wires(pipeline: Pipeline, stages: Mapping[str, WorkerStage]) -> list[Wire]:
    """The text goes to each stage that declares no input; what the output stage makes goes to the reader."""
    wires = [
        Wire(source="text", target=stage.name, capacity=MAX_TEXT_CHARACTERS, cost=len)
        for stage in pipeline.stages
        if not stage.inputs
    ]
    links = [(source, stage.name) for stage in pipeline.stages for source in stage.inputs]
    for source, target in [*links, (pipeline.output, "audio")]:
        deployment = stages[source].deployment
        lead = max(1, round(deployment.lead_seconds * deployment.stage.rate))
        wires.append(Wire(source=source, target=target, capacity=lead, cost=lambda chunk: chunk.units))
    return wires


class Runtime:
    """Starts a worker for every stage of the deployments and opens flows through them; the first model is the default.

    A deployment's name is its pipeline's. Use from one event loop.
    """

    def __init__(self, deployments: Sequence[Deployment], *, launcher: Launcher | None = None) -> None:
        self.models: Mapping[str, Pipeline] = {d.pipeline.name: d.pipeline for d in deployments}
        launcher = launcher or ProcessLauncher()
        self._stages = {
            f"{d.pipeline.name}.{name}": WorkerStage(f"{d.pipeline.name}.{name}", stage, launcher)
            for d in deployments
            for name, stage in d.stages.items()
        }
        self._numbers = itertools.count(1)
        self._flows: set[SpeechFlow] = set()

    async def start(self) -> None:
        """All workers, or none: raises START_FAILED after stopping those that did start."""
        try:
            async with asyncio.TaskGroup() as group:
                for stage in self._stages.values():
                    group.create_task(stage.supervisor.start())
        except BaseException as error:
            await self.stop()
            if isinstance(error, BaseExceptionGroup) and isinstance(error.exceptions[0], StreamSynthError):
                raise error.exceptions[0] from None
            raise

    async def stop(self) -> None:
        """Cancel what is running and end the workers. Idempotent."""
        for flow in list(self._flows):
            flow.cancel()
        await asyncio.gather(*(stage.supervisor.stop() for stage in self._stages.values()))

    def dead_stages(self) -> dict[str, str]:
        """Stages that cannot serve, and why; empty when ready."""
        reasons = {name: stage.unready_because() for name, stage in self._stages.items()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def open_speech(self, model: str, request: SpeechRequest) -> SpeechFlow:
        """Begin an utterance; its text follows. Raises MODEL_NOT_FOUND, OVERLOADED or WORKER_DIED at once, or a flow
        that fails later. Draws the seed if the request has none."""
        if model not in self.models:
            known = ", ".join(self.models)
            raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, f"no model {model!r}; there are: {known}", param="model")
        pipeline = self.models[model]
        stages = {stage.name: self._stages[f"{model}.{stage.name}"] for stage in pipeline.stages}
        if request.seed is None:
            request = replace(request, seed=secrets.randbits(63))
        flow = SpeechFlow(next(self._numbers), pipeline, stages, request)
        self._flows.add(flow)
        flow.outcome.add_done_callback(lambda _: self._flows.discard(flow))
        return flow

    def statistics(self) -> RuntimeStatistics:
        return RuntimeStatistics(
            live_flows=len(self._flows),
            stages={name: stage.statistics() for name, stage in self._stages.items()},
        )
