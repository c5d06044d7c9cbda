"""Layers of settings become a deployment. Precedence: command line, then deploy file, then pipeline, then defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from streamsynth.config.concerns import OWNERS
from streamsynth.config.deployment import Deployment, StageDeployment
from streamsynth.config.pipeline import Pipeline, Stage
from streamsynth.config.sharing import check_sharing
from streamsynth.config.unset import UNSET
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value


class Setting(NamedTuple):
    """A value that somebody wrote down, and where: "deploy.yaml:7", "--set"."""

    value: Any
    origin: str


Settings = Mapping[str, Setting]
# Stage name -> field name -> what was set there. A field that nobody set is not in it; an explicit null is.
Layer = Mapping[str, Settings]


def resolve(pipeline: Pipeline, *, file: Layer | None = None, command_line: Layer | None = None) -> Deployment:
    """Merge the layers over the pipeline. Raises UNKNOWN_FIELD or INVALID_VALUE, naming stage, field and place."""
    layers = [layer for layer in (command_line, file) if layer is not None]
    for layer in layers:
        for name in layer:
            pipeline.stage(name)
    deployment = Deployment(
        pipeline=pipeline,
        stages={
            stage.name: _Resolver(pipeline, stage).resolve([layer.get(stage.name, {}) for layer in layers])
            for stage in pipeline.stages
        },
    )
    check_sharing(deployment)
    return deployment


@dataclass(frozen=True, slots=True)
class _Resolver:
    pipeline: Pipeline
    stage: Stage

    def resolve(self, layers: Sequence[Settings]) -> StageDeployment:
        """Decide each field by the first of `layers` that has it, else by the pipeline."""
        for layer in layers:
            for name, setting in layer.items():
                self._check_owned(name, setting)
        stage = self.stage
        declared = {name: Setting(value, "pipeline") for name, value in {**stage.settings, **stage.options}.items()}
        chosen: dict[str, Setting] = {}
        for name in (*OWNERS, *stage.options):
            found = next((layer[name] for layer in (*layers, declared) if name in layer), None)
            if found is not None and found.value is not UNSET:
                chosen[name] = found
        for name, declared_value in stage.options.items():
            if name in chosen:
                self._check_option(name, declared_value, chosen[name])
        return self._build(chosen)

    def _build(self, chosen: Settings) -> StageDeployment:
        concerns = {name: chosen[name].value for name in OWNERS if name in chosen}
        options = {name: chosen[name].value for name in self.stage.options if name in chosen}
        origins = {name: setting.origin for name, setting in chosen.items()}
        try:
            built = StageDeployment(stage=self.stage, options=options, origins=origins, **concerns)
            if built.num_gpus > 1 and not self.stage.ranked:
                raise invalid_value("num_gpus", built.num_gpus, "1: this model runs in one process")
        except StreamSynthError as error:
            name = error.param or ""
            raise self._error(error.code, name, origins[name], error.message) from None
        return built

    def _check_owned(self, name: str, setting: Setting) -> None:
        owned = (*OWNERS, *self.stage.options)
        if name not in owned:
            close = get_close_matches(name, owned, n=1)
            hint = f"did you mean {close[0]}?" if close else f"its fields: {', '.join(owned)}"
            raise self._error(ErrorCode.UNKNOWN_FIELD, name, setting.origin, f"no field {name!r}; {hint}")

    def _check_option(self, name: str, declared: Any, setting: Setting) -> None:
        """An option keeps the type that it was declared with; one declared as UNSET or None takes any plain value."""
        value = setting.value
        free = declared is UNSET or declared is None
        if not _is_plain(value):
            limit = "plain data: null, true, false, numbers, text, lists or maps"
        elif free or type(value) is type(declared) or (isinstance(declared, float) and type(value) is int):
            return
        else:
            limit = f"of type {type(declared).__name__}"
        error = invalid_value(name, value, limit)
        raise self._error(error.code, name, setting.origin, error.message)

    def _error(self, code: ErrorCode, name: str, origin: str, message: str) -> StreamSynthError:
        place = f"stage {self.stage.name} of {self.pipeline.name}, {origin}"
        return StreamSynthError(code, f"{place}: {message}", param=f"{self.stage.name}.{name}")


def _is_plain(value: Any) -> bool:
    """Whether msgpack can carry it and nothing is lost: dates, sets and integers beyond 64 bits are not plain."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, (bool, float, str))
