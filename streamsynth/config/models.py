"""`streamsynth models`: which pipelines there are, and what each can do."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from streamsynth.config.pipeline import Pipeline
from streamsynth.config.registry import find_pipeline, pipelines

app = typer.Typer(add_completion=False)


@app.command()
def models(as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False) -> None:
    """List the models, their voices and their stages."""
    described = [_describe(find_pipeline(name)) for name in pipelines()]
    if as_json:
        typer.echo(json.dumps(described, indent=2))
    else:
        _print_table(described)


def _describe(pipeline: Pipeline) -> dict[str, Any]:
    speech = pipeline.speech
    return {
        "name": pipeline.name,
        "description": pipeline.description,
        "voices": {voice.id: list(voice.languages) for voice in speech.voices},
        "default_voice": speech.default_voice,
        "sample_rate": speech.sample_rate,
        "speed": list(speech.speed),
        "stages": [stage.name for stage in pipeline.stages],
    }


def _print_table(described: list[dict[str, Any]]) -> None:
    from streamsynth.console import print_table

    columns = ("model", "voices", "Hz", "speed", "stages", "what it is")
    print_table(columns, [[_cells(model) for model in described]])


def _cells(model: dict[str, Any]) -> list[str]:
    voices = ", ".join(f"{voice} ({' '.join(languages)})" for voice, languages in model["voices"].items())
    speed = "{:g} to {:g}".format(*model["speed"])
    stages = " > ".join(model["stages"])
    return [model["name"], voices, str(model["sample_rate"]), speed, stages, model["description"]]
