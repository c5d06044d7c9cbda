"""What will really run: every field of every stage decided, and where each decision was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from streamsynth.config.concerns import CONCERNS, RuntimeConfig, SchedulerConfig
from streamsynth.config.pipeline import Pipeline, Stage
from streamsynth.config.unset import UNSET
from streamsynth.errors import invalid_value


class EffectiveField(NamedTuple):
    """One line of `config show`. `concern` owns the field; `value` is UNSET where the engine decides."""

    concern: str
    name: str
    value: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class StageDeployment(RuntimeConfig, SchedulerConfig):
    """One stage as it will run: the fields of both concerns, and `options`, the engine's keyword arguments.

    `options` holds explicit values only, all of them plain data that msgpack can carry. `origins` says, for each field
    that somebody set, where that was.
    """

    stage: Stage
    options: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def effective_fields(self) -> Iterator[EffectiveField]:
        for concern, owner in CONCERNS.items():
            for spec in fields(owner):
                origin = self.origins.get(spec.name, "default")
                yield EffectiveField(concern, spec.name, getattr(self, spec.name), origin)
        for name in self.stage.options:
            yield EffectiveField("model", name, self.options.get(name, UNSET), self.origins.get(name, "engine"))


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One pipeline with all its stages resolved, in the pipeline's order."""

    pipeline: Pipeline
    stages: Mapping[str, StageDeployment]


def check_threads(deployments: Sequence[Deployment], cores: int) -> None:
    """Refuse thread budgets that add up to more than `cores`; one thread a process is always allowed."""
    stages = [stage for deployment in deployments for stage in deployment.stages.values()]
    total = sum(stage.threads * stage.num_gpus for stage in stages)
    if total > max(cores, sum(stage.num_gpus for stage in stages)):
        shares = " + ".join(f"{stage.stage.name} {stage.threads * stage.num_gpus}" for stage in stages)
        raise invalid_value("threads", total, f"at most {cores} in all, the cores of this machine ({shares})")
