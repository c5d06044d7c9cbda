"""`streamsynth models`: which pipelines there are, what each can do, and how a checkpoint becomes one."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from streamsynth.config.pipeline import Pipeline
from streamsynth.config.registry import find_pipeline, pipelines
from streamsynth.speech import SpeechTraits
from streamsynth.video import VideoTraits

app = typer.Typer(add_completion=False)


_CONVERT = "streamsynth.models.wan.convert"
"""Named, not imported: it loads torch, and listing models must not."""


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
) -> None:
    """List the models, their voices and their stages."""
    if context.invoked_subcommand is not None:
        return
    described = [_describe(find_pipeline(name)) for name in pipelines()]
    if as_json:
        typer.echo(json.dumps(described, indent=2))
    else:
        _print_table(described)


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="A .pt, .pth or .safetensors file of Wan's, Self-Forcing's or TAEHV's.")],
    output: Annotated[Path, typer.Argument(help="The folder to write: config.json and safetensors.")],
    weights: Annotated[str | None, typer.Option(help="Which weights, if there are several: generator_ema ...")] = None,
    head_dim: Annotated[int, typer.Option(help="Of the transformer's attention; 128 in every release.")] = 128,
) -> None:
    """Turn a checkpoint into a folder that loads. Read once and as tensors alone: pickled code is refused."""
    done = import_module(_CONVERT).convert(file, output, weights=weights, head_dim=head_dim)
    taken = f" from {done.wrapper}" if done.wrapper else ""
    typer.echo(f"{output}: {done.part}, {done.tensors} tensors, {done.nbytes / 1e6:.1f} MB{taken}")


def _describe(pipeline: Pipeline) -> dict[str, Any]:
    traits = pipeline.traits
    return {
        "name": pipeline.name,
        "description": pipeline.description,
        **(_describe_speech(traits) if isinstance(traits, SpeechTraits) else _describe_video(traits)),
        "stages": [stage.name for stage in pipeline.stages],
    }


def _describe_speech(speech: SpeechTraits) -> dict[str, Any]:
    return {
        "makes": "speech",
        "voices": {voice.id: list(voice.languages) for voice in speech.voices},
        "default_voice": speech.default_voice,
        "sample_rate": speech.sample_rate,
        "speed": list(speech.speed),
    }


def _describe_video(video: VideoTraits) -> dict[str, Any]:
    return {
        "makes": "video" if "video" in video.kinds else "image",
        "realtime": video.realtime,
        "sizes": [str(size) for size in video.sizes],
        "fps": video.fps,
        "chunk_frames": video.chunk_frames,
        "interactions": sorted(video.interactions),
    }


def _print_table(described: list[dict[str, Any]]) -> None:
    from streamsynth.console import print_table

    columns = ("model", "makes", "what it offers", "stages", "what it is")
    print_table(columns, [[_cells(model) for model in described]])


def _cells(model: dict[str, Any]) -> list[str]:
    if model["makes"] == "speech":
        voices = ", ".join(f"{voice} ({' '.join(languages)})" for voice, languages in model["voices"].items())
        offers = "{}; {} Hz, speed {:g} to {:g}".format(voices, model["sample_rate"], *model["speed"])
    elif not model["sizes"]:
        offers = "images or whole clips, as its folder says"
    else:
        offers = f"{', '.join(model['sizes'])}; {model['fps']} fps"
    return [model["name"], model["makes"], offers, " > ".join(model["stages"]), model["description"]]
