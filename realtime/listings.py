"""What the server has and how it is: models, voices, limits, liveness, readiness, metrics."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from aiohttp import web

from streamsynth.codecs.formats import SAMPLE_RATES
from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.observe.metrics import CONTENT_TYPE
from streamsynth.realtime.fields import HINTS
from streamsynth.realtime.keys import DRAINING, LIMITS, METRICS, MODEL_LIMITS, RUNTIME
from streamsynth.realtime.names import MODEL_ALIASES, is_alias, resolve_model, voice_aliases
from streamsynth.runtime import Runtime
from streamsynth.speech import SpeechTraits
from streamsynth.video import VideoTraits

_STARTED = int(time.time())


async def list_models(request: web.Request) -> web.Response:
    """OpenAI's list; an alias says which model it means."""
    return web.json_response({"object": "list", "data": _models(request.app[RUNTIME])})


async def show_model(request: web.Request) -> web.Response:
    name = request.match_info["model"]
    runtime = request.app[RUNTIME]
    for model in _models(runtime):
        if model["id"] == name:
            return web.json_response(model)
    if runtime.speech_models and is_alias(name):  # a dated one
        return web.json_response(_model(name, alias_of=resolve_model(name, runtime.speech_models)))
    message = f"there is no model {name[:60]!r}; this server has {', '.join(runtime.models)}"
    raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, message, param="model")


async def list_voices(request: web.Request) -> web.Response:
    """The voices of `?model=` or of the default model, then the names of other systems that mean one of them."""
    models = request.app[RUNTIME].speech_models
    for name in request.query:
        if name != "model":
            raise StreamSynthError(ErrorCode.UNKNOWN_FIELD, "this path takes no query but model", param=name[:60])
    traits = models[resolve_model(request.query.get("model"), models)].speech
    languages = {voice.id: list(voice.languages) for voice in traits.voices}
    own = [{"id": voice.id, "name": voice.name, "languages": languages[voice.id]} for voice in traits.voices]
    aliases = [
        {"id": alias, "name": alias.title(), "languages": languages[voice], "alias_of": voice}
        for alias, voice in voice_aliases(traits).items()
    ]
    return web.json_response({"voices": own + aliases})


async def show_limits(request: web.Request) -> web.Response:
    """Everything that a client may want to know before it is refused."""
    return web.json_response(
        {
            "limits": request.app[LIMITS].published(),
            "models": {
                name: {**_traits(model), "limits": request.app[MODEL_LIMITS][name]}
                for name, model in request.app[RUNTIME].models.items()
            },
            "formats": {name.value: _rates(rates) for name, rates in SAMPLE_RATES.items()},
            "hints": list(HINTS),
        }
    )


async def health(_: web.Request) -> web.Response:
    """That this answers is the answer: the loop runs."""
    return web.json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """503 names what cannot serve; a full server is loaded, not unready."""
    dead = request.app[RUNTIME].dead_stages()
    if request.app[DRAINING].begun:
        return web.json_response({"status": "shutting_down", "stages": dead}, status=503)
    if dead:
        return web.json_response({"status": "unready", "stages": dead}, status=503)
    return web.json_response({"status": "ready", "stages": {}})


async def metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[METRICS].render(), headers={"Content-Type": CONTENT_TYPE})


def _models(runtime: Runtime) -> list[dict[str, Any]]:
    models = [_model(name) for name in runtime.models]
    if not runtime.speech_models:
        return models
    default = resolve_model(None, runtime.speech_models)
    return models + [_model(name, alias_of=default) for name in MODEL_ALIASES if name not in runtime.models]


def _model(name: str, *, alias_of: str | None = None) -> dict[str, Any]:
    model: dict[str, Any] = {"id": name, "object": "model", "created": _STARTED, "owned_by": "streamsynth"}
    return model if alias_of is None else {**model, "alias_of": alias_of}


def _traits(model: Pipeline) -> dict[str, Any]:
    traits = model.traits
    described = _speech(traits) if isinstance(traits, SpeechTraits) else _video(traits)
    return {"description": model.description, **described}


def _video(video: VideoTraits) -> dict[str, Any]:
    return {
        "kind": "video",
        "sizes": [{"width": size.width, "height": size.height} for size in video.sizes],
        "fps": video.fps,
        "chunk_frames": video.chunk_frames,
        "first_chunk_frames": video.first_chunk_frames,
        "interactions": sorted(video.interactions),
        "default_transition_chunks": video.default_transition_chunks,
        "negative_prompt": video.negative_prompt,
        "makes": sorted(video.kinds),
        "realtime": video.realtime,
        "size_range": dataclasses.asdict(video.size_range) if video.size_range else None,
        "frame_step": video.frame_step,
        "default_frames": video.default_frames,
        "max_steps": video.max_steps,
        "guidance": video.guidance,
        "input_reference": video.picture.value,
    }


def _speech(speech: SpeechTraits) -> dict[str, Any]:
    return {
        "kind": "speech",
        "sample_rate": speech.sample_rate,
        "speed": list(speech.speed),
        "token": speech.token,
        "default_voice": speech.default_voice,
        "hints": sorted(speech.supported_hints),
        "options": sorted(speech.options),
    }


def _rates(rates: Any) -> dict[str, Any]:
    if isinstance(rates, range):
        return {"min": rates.start, "max": rates.stop - 1}
    return {"one_of": list(rates)}
