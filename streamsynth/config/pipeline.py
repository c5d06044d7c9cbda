"""Pipelines as model families declare them in code. Importing a declaration imports no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streamsynth.speech import SpeechTraits


class StageKind(StrEnum):
    GENERATION = "generation"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage: a model behind an engine, run by worker processes.

    `engine` is the import path "package.module:Class" that the worker process loads, with `options` as its keyword
    arguments (a deploy file may override the options that are declared here, and no others). `inputs` are the names of
    the stages it reads from; a stage without inputs reads the request's text.
    """

    name: str
    kind: StageKind
    engine: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A small DAG of stages; `output` names the stage whose chunks leave the server."""

    name: str
    description: str
    stages: tuple[Stage, ...]
    output: str
    speech: SpeechTraits
