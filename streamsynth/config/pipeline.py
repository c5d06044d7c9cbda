"""Pipelines as model families declare them in code. Importing a declaration imports no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any

from streamsynth.config.concerns import OWNERS
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.graph.chunk import Unit
from streamsynth.speech import SpeechTraits
from streamsynth.video import VideoTraits


class StageKind(StrEnum):
    AUTOREGRESSIVE = "autoregressive"
    GENERATION = "generation"
    DIFFUSION = "diffusion"
    """Denoising: chunk by chunk, pictures that interactions steer while they are made; or step by step, whole clips."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage: a model behind an engine, run by worker processes.

    `engine` is the import path "package.module:Class" that the worker process loads, with `options` as its keyword
    arguments (a deploy file may override the options that are declared here, and no others). An option declared as
    UNSET is not sent unless somebody sets it: the engine's own default stands. `settings` are values of the fields in
    `config.concerns` that suit this model better than the general defaults. `inputs` are the names of the stages it
    reads from; a stage without inputs reads the request's text, or the interactions of a video. `unit` is what its
    output counts, `rate` how many of them make a second. The engine of a stage that is `ranked` can be loaded by
    several ranks: then it is given its `seat` too.
    """

    name: str
    kind: StageKind
    engine: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    unit: Unit = Unit.SAMPLE
    rate: int = 24_000
    ranked: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise invalid_value("stage name", self.name, "an identifier")
        for option in self.options:
            if option in OWNERS:
                raise invalid_value(f"option of stage {self.name}", option, f"no field of the {OWNERS[option]} concern")
        for setting in self.settings:
            if setting not in OWNERS:
                raise invalid_value(f"setting of stage {self.name}", setting, "one of " + ", ".join(OWNERS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A small DAG of stages; `output` names the stage whose chunks leave the server. What `traits` are says what it
    makes."""

    name: str
    description: str
    stages: tuple[Stage, ...]
    output: str
    traits: SpeechTraits | VideoTraits

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise invalid_value(f"stage name in pipeline {self.name}", name, "used once")
        if self.output not in names:
            raise invalid_value(
                f"output of pipeline {self.name}", self.output, "one of its stages: " + ", ".join(names)
            )
        for stage in self.stages:
            for source in stage.inputs:
                if source not in names:
                    raise invalid_value(f"input of stage {stage.name}", source, "one of: " + ", ".join(names))
        try:
            TopologicalSorter({stage.name: stage.inputs for stage in self.stages}).prepare()
        except CycleError as error:
            raise invalid_value(f"stages of pipeline {self.name}", error.args[1], "free of cycles") from None

    @property
    def speech(self) -> SpeechTraits:
        """Of a pipeline that speaks; raises MODEL_NOT_FOUND for another."""
        if not isinstance(self.traits, SpeechTraits):
            raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, f"the model {self.name!r} does not speak", param="model")
        return self.traits

    @property
    def video(self) -> VideoTraits:
        """Of a pipeline that makes video; raises MODEL_NOT_FOUND for another."""
        if not isinstance(self.traits, VideoTraits):
            message = f"the model {self.name!r} makes no video"
            raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
        return self.traits

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise invalid_value(f"stage of pipeline {self.name}", name, "one of: " + ", ".join(s.name for s in self.stages))
