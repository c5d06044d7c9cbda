"""The pipelines that exist, by name. Looking one up imports its declaration, never its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.video import VideoTraits

DEFAULT_PIPELINE = "tiny-speech"

_DECLARATIONS: Mapping[str, str] = {
    "tiny-speech": "streamsynth.models.tiny_speech.pipeline:TINY_SPEECH",
    "hibari": "streamsynth.models.hibari.pipeline:HIBARI",
    "csm": "streamsynth.models.csm.pipeline:CSM",
    "sine": "streamsynth.testing.sine_pipeline:SINE",
    "tiny-world": "streamsynth.models.tiny_world.pipeline:TINY_WORLD",
    "paint": "streamsynth.testing.paint_pipeline:PAINT",
    "wan": "streamsynth.models.wan.pipeline:WAN",
    "diffusers": "streamsynth.models.diffusers.pipeline:DIFFUSERS",
}


def pipelines() -> tuple[str, ...]:
    """The names of all pipelines, the default one first."""
    return tuple(_DECLARATIONS)


def find_pipeline(name: str) -> Pipeline:
    """The declaration called `name`; raises MODEL_NOT_FOUND, naming those that exist."""
    path = _DECLARATIONS.get(name)
    if path is None:
        known = ", ".join(_DECLARATIONS)
        raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, f"no model {name!r}; there are: {known}", param="model")
    module, _, attribute = path.partition(":")
    pipeline = getattr(import_module(module), attribute)
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"{path} is not a Pipeline")
    return pipeline


def first_video_model(made: str, able: Callable[[VideoTraits], bool] = lambda _: True) -> str:
    """The first model of pictures that is `able`; raises MODEL_NOT_FOUND, saying what is `made` by none."""
    for name in pipelines():
        traits = find_pipeline(name).traits
        if isinstance(traits, VideoTraits) and able(traits):
            return name
    raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, f"no model here makes {made}", param="model")
