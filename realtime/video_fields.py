"""What `session.start` asks for, checked against the model that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamsynth.codecs.pictures import VideoFormat
from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value, unknown_field
from streamsynth.interactions.events import check_prompt
from streamsynth.realtime.fields import HINTS, check_hints, parse_choice, parse_flag, parse_seed
from streamsynth.video import Size, VideoRequest, VideoTraits

START_FIELDS = frozenset(
    {
        *("model", "prompt", "format", "width", "height", "fps", "num_frames", "seed", "negative_prompt"),
        *("receipts", "pacing", "on_slow"),
    }
)
_UNSERVED = ("image_reference",)


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoSettings:
    """A video as it will be made and sent: every default filled in. `paced`: not faster than it plays, but for a lead;
    `drops`: a slow viewer misses pictures instead of making the model wait. `ignored`: the hints that were given."""

    model: str
    request: VideoRequest
    format: VideoFormat
    fps: int
    chunk_frames: int
    receipts: bool = False
    paced: bool = True
    drops: bool = False
    ignored: tuple[str, ...] = ()


def parse_video_fields(
    fields: Mapping[str, object], models: Mapping[str, Pipeline], *, payload_bytes: int, loopback: bool
) -> VideoSettings:
    """Check `fields` and fill in the defaults; raises StreamSynthError naming the field and its limit.

    `models` are those that make video. `raw` is for clients on this machine (`loopback`), one picture a payload.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    model = _resolve_model(given.get("model"), models)
    traits = models[model].video
    _refuse_names(fields, given, traits, model)
    size = _parse_size(given, traits, model)
    request = VideoRequest(
        prompt=parse_prompt("prompt", given, traits),
        width=size.width,
        height=size.height,
        num_frames=_parse_num_frames(given.get("num_frames"), traits),
        seed=parse_seed(given.get("seed")),
        negative_prompt=parse_prompt("negative_prompt", given, traits) if "negative_prompt" in given else None,
    )
    if given.get("fps", traits.fps) != traits.fps:
        raise invalid_value("fps", given["fps"], f"{traits.fps}, what the model {model!r} makes")
    return VideoSettings(
        model=model,
        request=request,
        format=_parse_format(given.get("format"), size, payload_bytes, loopback=loopback),
        fps=traits.fps,
        chunk_frames=traits.chunk_frames,
        receipts=bool(parse_flag("receipts", given.get("receipts"))),
        paced=parse_choice("pacing", given.get("pacing"), ("realtime", "none")) != "none",
        drops=parse_choice("on_slow", given.get("on_slow"), ("wait", "drop_oldest")) == "drop_oldest",
        ignored=tuple(sorted(check_hints(given))),
    )


def _resolve_model(name: object, models: Mapping[str, Pipeline]) -> str:
    steerable = [known for known, model in models.items() if model.video.realtime]
    if not steerable:
        message = "no model of this server makes video while it is watched"
        raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
    if name is None:
        return steerable[0]
    if not isinstance(name, str):
        raise invalid_value("model", name, "a string")
    if name not in steerable:
        said = f"there is no model {name[:60]!r} that makes video"
        if name in models:
            clips = "video" in models[name].video.kinds
            made = "whole clips, by /v1/videos" if clips else "images, by /v1/images/generations"
            said = f"the model {name!r} makes {made}"
        message = f"{said}; this server has {', '.join(steerable)}"
        raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
    return name


def _refuse_names(fields: Mapping[str, object], given: Mapping[str, object], traits: VideoTraits, model: str) -> None:
    for name in fields:
        unserved = name in _UNSERVED or (name == "negative_prompt" and not traits.negative_prompt)
        if unserved and name in given:
            message = f"the model {model!r} does not support {name}"
            raise StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, message, param=name)
        if name not in START_FIELDS | HINTS.keys() and name not in _UNSERVED:
            raise unknown_field(name)


def _parse_size(given: Mapping[str, object], traits: VideoTraits, model: str) -> Size:
    """One of the model's sizes; a width or a height alone means the first that has it."""
    sizes = traits.sizes
    for name in ("width", "height"):
        value = given.get(name)
        if value is None:
            continue
        sizes = tuple(size for size in sizes if type(value) is int and getattr(size, name) == value)
        if not sizes:
            offered = ", ".join(str(size) for size in traits.sizes)
            raise invalid_value(name, value, f"that of a size which the model {model!r} offers: {offered}")
    return sizes[0]


def parse_prompt(name: str, given: Mapping[str, object], traits: VideoTraits) -> str:
    """A prompt of the model's length; raises MISSING_FIELD or INVALID_VALUE."""
    if name not in given:
        raise StreamSynthError(ErrorCode.MISSING_FIELD, f"{name} is missing", param=name)
    prompt = check_prompt(given[name], name)
    if len(prompt) > traits.max_prompt_characters:
        raise invalid_value(name, prompt, f"at most {traits.max_prompt_characters} characters")
    return prompt


def _parse_num_frames(value: object, traits: VideoTraits) -> int | None:
    if value is None or (type(value) is int and 1 <= value <= traits.max_frames):
        return value
    raise invalid_value("num_frames", value, f"an integer within 1..{traits.max_frames}, or absent: until stopped")


def _parse_format(value: object, size: Size, payload_bytes: int, *, loopback: bool) -> VideoFormat:
    choice = VideoFormat(parse_choice("format", value, tuple(VideoFormat)) or VideoFormat.M4S)
    if choice is VideoFormat.RAW:
        nbytes = 3 * size.width * size.height
        if not loopback:
            raise invalid_value("format", value, "m4s or jpeg: raw pictures do not leave the machine")
        if nbytes > payload_bytes:
            limit = f"m4s or jpeg: a raw picture of {size} has {nbytes} bytes, and a payload at most {payload_bytes}"
            raise invalid_value("format", value, limit)
    return choice
