"""From what somebody typed (models, deploy files, `--set`) to the deployments that will run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from streamsynth.config.deploy_file import DeployFile, parse_value, read_deploy_file
from streamsynth.config.deployment import Deployment
from streamsynth.config.pipeline import Pipeline
from streamsynth.config.registry import DEFAULT_PIPELINE, find_pipeline
from streamsynth.config.resolve import Layer, Setting, resolve
from streamsynth.errors import invalid_value


def plan(models: Sequence[str] = (), deploy: Sequence[Path] = (), sets: Sequence[str] = ()) -> list[Deployment]:
    """Resolve each model once, in the order given; reads the deploy files (blocking).

    Without `models`, those that the deploy files name are taken, else the default one. Each of `sets` reads
    "STAGE.FIELD=VALUE", or "MODEL.STAGE.FIELD=VALUE" where two models have a stage of that name. Raises
    StreamSynthError for anything that would have no effect.
    """
    files = _files_by_pipeline(deploy)
    names = list(models) or list(files) or [DEFAULT_PIPELINE]
    for name in names:
        if names.count(name) > 1:
            raise invalid_value("model", name, "given once")
    for name, file in files.items():
        if name not in names:
            raise invalid_value(f"{file.path}: pipeline", name, "one of the models: " + ", ".join(names))
    pipelines = {name: find_pipeline(name) for name in names}
    typed = _command_line(sets, list(pipelines.values()))
    return [
        resolve(pipeline, file=files[name].layer if name in files else None, command_line=typed.get(name))
        for name, pipeline in pipelines.items()
    ]


def _files_by_pipeline(paths: Sequence[Path]) -> dict[str, DeployFile]:
    files: dict[str, DeployFile] = {}
    for path in paths:
        file = read_deploy_file(path)
        if file.pipeline in files:
            raise invalid_value(
                f"{path}: pipeline", file.pipeline, f"in one file only (also {files[file.pipeline].path})"
            )
        files[file.pipeline] = file
    return files


def _command_line(sets: Sequence[str], pipelines: Sequence[Pipeline]) -> Mapping[str, Layer]:
    """Pipeline name -> its layer of typed settings."""
    typed: dict[str, dict[str, dict[str, Setting]]] = {}
    for text in sets:
        target, equals, value = text.partition("=")
        parts = target.split(".")
        if not equals or len(parts) not in (2, 3) or not all(parts):
            raise invalid_value("--set", text, "STAGE.FIELD=VALUE or MODEL.STAGE.FIELD=VALUE")
        model, stage, name = _owner(parts, pipelines, text), parts[-2], parts[-1]
        fields = typed.setdefault(model, {}).setdefault(stage, {})
        if name in fields:
            raise invalid_value("--set", text, f"given once for {target}")
        fields[name] = Setting(parse_value(value, f"--set {target}"), "--set")
    return typed


def _owner(parts: Sequence[str], pipelines: Sequence[Pipeline], text: str) -> str:
    """The pipeline that a typed setting belongs to."""
    names = [pipeline.name for pipeline in pipelines]
    if len(parts) == 3:
        if parts[0] not in names:
            raise invalid_value("--set", text, "for one of the models: " + ", ".join(names))
        return parts[0]
    stages = {p.name: [stage.name for stage in p.stages] for p in pipelines}
    owners = [name for name in names if parts[0] in stages[name]]
    if len(owners) != 1:
        known = ", ".join(f"{name}.{stage}" for name in names for stage in stages[name])
        raise invalid_value("--set", text, f"for exactly one stage of: {known}")
    return owners[0]
