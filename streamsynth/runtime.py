"""The running pipelines of this process. The server and the local Python API both make their media here."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from streamsynth.config.deployment import Deployment
from streamsynth.config.devices import assign_devices
from streamsynth.config.pipeline import Pipeline
from streamsynth.config.sharing import share_workers
from streamsynth.environment import visible_devices
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import RequestFlow, SpeechFlow, VideoFlow
from streamsynth.interactions.messages import Notice
from streamsynth.speech import SpeechRequest, SpeechTraits
from streamsynth.video import MAX_PICTURE_BYTES, VideoRequest, VideoTraits
from streamsynth.workers.launchers import Launcher, ProcessLauncher
from streamsynth.workers.stage import StageStatistics, WorkerStage


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeStatistics:
    live_flows: int
    stages: Mapping[str, StageStatistics]


class Runtime:
    """Starts a worker for every stage of the deployments and opens flows through them; the first model is the default.

    A deployment's name is its pipeline's. Raises INVALID_VALUE for devices that there are not. Use from one event loop.
    """

    def __init__(self, deployments: Sequence[Deployment], *, launcher: Launcher | None = None) -> None:
        deployments = assign_devices(deployments, len(visible_devices()))
        deployments = [share_workers(deployment) for deployment in deployments]
        self.models: dict[str, Pipeline] = {d.pipeline.name: d.pipeline for d in deployments}
        launcher = launcher or ProcessLauncher()
        self._stages = {
            f"{d.pipeline.name}.{name}": WorkerStage(f"{d.pipeline.name}.{name}", stage, launcher)
            for d in deployments
            for name, stage in d.stages.items()
        }
        self._numbers = itertools.count(1)
        self._flows: set[RequestFlow] = set()

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
        self.models.update({name: self._as_loaded(model) for name, model in self.models.items()})

    def _as_loaded(self, model: Pipeline) -> Pipeline:
        """The pipeline as its worker has found it."""
        traits = self._stages[f"{model.name}.{model.output}"].supervisor.traits
        return model if traits is None else replace(model, traits=msgspec.convert(traits, VideoTraits))

    async def stop(self) -> None:
        """Cancel what is running and end the workers. Idempotent."""
        for flow in list(self._flows):
            flow.cancel()
        await asyncio.gather(*(stage.supervisor.stop() for stage in self._stages.values()))

    def dead_stages(self) -> dict[str, str]:
        """Stages that cannot serve, and why; empty when ready."""
        reasons = {name: stage.unready_because() for name, stage in self._stages.items()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    @property
    def speech_models(self) -> Mapping[str, Pipeline]:
        """Those that speak; the first is the default voice."""
        return {name: model for name, model in self.models.items() if isinstance(model.traits, SpeechTraits)}

    @property
    def video_models(self) -> Mapping[str, Pipeline]:
        """Those that make video; the first is the default."""
        return {name: model for name, model in self.models.items() if isinstance(model.traits, VideoTraits)}

    def open_speech(self, model: str, request: SpeechRequest) -> SpeechFlow:
        """Begin an utterance; its text follows. Raises MODEL_NOT_FOUND, OVERLOADED or WORKER_DIED at once, or a flow
        that fails later. Draws the seed if the request has none."""
        pipeline = self._model(model)
        flow = SpeechFlow(next(self._numbers), pipeline, self._stages_of(pipeline), _seeded(request))
        self._keep(flow)
        return flow

    def open_video(self, model: str, request: VideoRequest, on_notice: Callable[[Notice], None]) -> VideoFlow:
        """Begin a video. Raises as `open_speech`. `on_notice` hears on the loop what becomes of its interactions."""
        pipeline = self._model(model)
        _refuse_large_picture(request)
        flow = VideoFlow(next(self._numbers), pipeline, self._stages_of(pipeline), _seeded(request), on_notice)
        self._keep(flow)
        return flow

    async def check_video(self, model: str, request: VideoRequest) -> None:
        """Raises what the video's flow would fail with at once, for what the request asks: the model's workers say
        it, each between two of its steps, whether there is room or not. Raises WORKER_DIED if one cannot be asked."""
        _refuse_large_picture(request)
        for stage in self._stages_of(self._model(model)).values():
            await stage.supervisor.connection.check(next(self._numbers), request.to_wire())

    def _model(self, name: str) -> Pipeline:
        if name not in self.models:
            known = ", ".join(self.models)
            raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, f"no model {name!r}; there are: {known}", param="model")
        return self.models[name]

    def _stages_of(self, pipeline: Pipeline) -> dict[str, WorkerStage]:
        return {stage.name: self._stages[f"{pipeline.name}.{stage.name}"] for stage in pipeline.stages}

    def _keep(self, flow: RequestFlow) -> None:
        self._flows.add(flow)
        flow.outcome.add_done_callback(lambda _: self._flows.discard(flow))

    def statistics(self) -> RuntimeStatistics:
        return RuntimeStatistics(
            live_flows=len(self._flows),
            stages={name: stage.statistics() for name, stage in self._stages.items()},
        )


def _refuse_large_picture(request: VideoRequest) -> None:
    if request.picture is not None and len(request.picture) > MAX_PICTURE_BYTES:
        message = f"the picture has {len(request.picture)} bytes; the limit is {MAX_PICTURE_BYTES}"
        raise StreamSynthError(ErrorCode.MESSAGE_TOO_LARGE, message, param="picture")


R = TypeVar("R", SpeechRequest, VideoRequest)


def _seeded(request: R) -> R:
    return request if request.seed is not None else replace(request, seed=secrets.randbits(63))
