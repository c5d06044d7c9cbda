"""Stages that share a worker: to the graph they are one stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamsynth.config.deployment import Deployment, StageDeployment
from streamsynth.config.pipeline import Pipeline, Stage
from streamsynth.errors import StreamSynthError, invalid_value

_ENGINE = "streamsynth.engine.joined:JoinedEngine"


def check_sharing(deployment: Deployment) -> None:
    """Raise INVALID_VALUE for a stage that is to share a worker and cannot."""
    for taker in _sharing(deployment):
        stage = taker.stage
        readers = [other for other in deployment.pipeline.stages if set(stage.inputs) & set(other.inputs)]
        makers = [deployment.stages[name] for name in stage.inputs]
        if len(makers) != 1 or len(readers) != 1 or makers[0].stage.inputs:
            raise _refused(taker, "false: it would have to be the one reader of one stage that reads the request")
        if taker.devices != makers[0].devices:
            raise _refused(taker, "false where the two stages name different devices")
        if max(taker.num_gpus, makers[0].num_gpus) > 1:
            raise _refused(taker, "false where a stage has several ranks")


def share_workers(deployment: Deployment) -> Deployment:
    """As it is to be run: with one stage in the place of two that share a worker."""
    for taker in _sharing(deployment):
        deployment = _merge(deployment, deployment.stages[taker.stage.inputs[0]], taker)
    return deployment


def _sharing(deployment: Deployment) -> list[StageDeployment]:
    return [stage for stage in deployment.stages.values() if stage.shares_worker]


def _merge(deployment: Deployment, maker: StageDeployment, taker: StageDeployment) -> Deployment:
    name = f"{maker.stage.name}_{taker.stage.name}"
    options = {"maker": _described(maker), "taker": _described(taker)}
    stage = Stage(
        name=name,
        kind=maker.stage.kind,
        engine=_ENGINE,
        options=options,
        unit=taker.stage.unit,
        rate=taker.stage.rate,
    )
    both = StageDeployment(
        stage=stage,
        options=options,
        threads=max(maker.threads, taker.threads),
        devices=maker.devices,
        start_timeout_s=min(3600.0, maker.start_timeout_s + taker.start_timeout_s),
        heartbeat_timeout_s=max(maker.heartbeat_timeout_s, taker.heartbeat_timeout_s),
        stall_timeout_s=max(maker.stall_timeout_s, taker.stall_timeout_s),
        max_num_seqs=min(maker.max_num_seqs, taker.max_num_seqs),
        max_queued=maker.max_queued,
        queue_timeout_s=maker.queue_timeout_s,
        lead_seconds=taker.lead_seconds,
    )
    stages = {
        (name if old == maker.stage.name else old): (both if old == maker.stage.name else other)
        for old, other in deployment.stages.items()
        if old != taker.stage.name
    }
    pipeline = deployment.pipeline
    return Deployment(pipeline=_renamed(pipeline, taker.stage.name, name, stages), stages=stages)


def _renamed(pipeline: Pipeline, old: str, new: str, stages: dict[str, StageDeployment]) -> Pipeline:
    """The pipeline of these stages, in which what read `old` reads `new`."""
    kept = tuple(
        replace(each.stage, inputs=tuple(new if name == old else name for name in each.stage.inputs))
        for each in stages.values()
    )
    return replace(pipeline, stages=kept, output=new if pipeline.output == old else pipeline.output)


def _described(deployment: StageDeployment) -> dict[str, Any]:
    return {
        "engine": deployment.stage.engine,
        "options": dict(deployment.options),
        "unit": deployment.stage.unit.value,
    }


def _refused(taker: StageDeployment, limit: str) -> StreamSynthError:
    return invalid_value(f"{taker.stage.name}.shares_worker", True, limit)
