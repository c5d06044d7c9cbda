"""What a request for a whole clip or an image asks for, checked against the model that it names.

A form carries text alone, so a number may be written as text everywhere.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from streamsynth.codecs.stills import StillFormat
from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value, unknown_field
from streamsynth.realtime.fields import parse_choice, parse_seed
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.references import parse_picture
from streamsynth.realtime.video_fields import parse_prompt
from streamsynth.video import MAX_GUIDANCE, PictureUse, Size, VideoRequest, VideoTraits

COMMON_FIELDS = frozenset(
    {
        *("model", "prompt", "size", "seed", "negative_prompt", "num_inference_steps", "guidance_scale"),
        "input_reference",
    }
)
VIDEO_FIELDS = COMMON_FIELDS | {"seconds", "num_frames", "fps"}
IMAGE_FIELDS = COMMON_FIELDS | {"n", "output_format", "response_format"}

HINTS = frozenset({"user", "metadata", "safety_identifier"})
"""Accepted, and said to be ignored."""
IMAGE_HINTS = HINTS | {"quality", "style", "moderation"}
_UNSERVED = frozenset(
    {
        *("extra_params", "max_sequence_length", "flow_shift", "generate_sound", "sound_duration"),
        *("background", "output_compression", "partial_images", "stream", "mask", "image"),
    }
)

_DEFAULT_S = 4
_SIZE = re.compile(r"([0-9]{1,5})x([0-9]{1,5})")
_WHOLE = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipSettings:
    """A clip or an image as it will be made: every default filled in, the seed drawn. `ignored` are the hints."""

    model: str
    request: VideoRequest
    fps: int
    ignored: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        assert self.request.seed is not None
        return self.request.seed

    @property
    def num_frames(self) -> int:
        assert self.request.num_frames is not None
        return self.request.num_frames


def parse_clip_fields(fields: Mapping[str, object], models: Mapping[str, Pipeline], limits: Limits) -> ClipSettings:
    """The fields of `POST /v1/videos`. `models` are all that make pictures; raises StreamSynthError naming the field
    and its limit."""
    given = _given(fields)
    model = _resolve_model(given.get("model"), models, "video")
    traits = models[model].video
    _refuse_names(given, VIDEO_FIELDS, HINTS, model)
    if "fps" in given and whole_number("fps", given["fps"], 1, 1000) != traits.fps:
        raise invalid_value("fps", given["fps"], f"{traits.fps}, what the model {model!r} makes")
    return _settings(given, model, traits, _parse_length(given, traits, model), HINTS, limits)


def parse_image_fields(fields: Mapping[str, object], models: Mapping[str, Pipeline], limits: Limits) -> ClipSettings:
    """The fields of `POST /v1/images/generations` that say what is made: a clip whose last picture is the image. Of a
    model that makes chunks it is the first one: pictures at its end had others to go on from."""
    given = _given(fields)
    model = _resolve_model(given.get("model"), models, "image")
    _refuse_names(given, IMAGE_FIELDS, IMAGE_HINTS, model)
    traits = models[model].video
    return _settings(given, model, traits, traits.first_chunk_frames if traits.realtime else 1, IMAGE_HINTS, limits)


def parse_image_format(fields: Mapping[str, object]) -> StillFormat:
    """Raises INVALID_VALUE for what no image here is."""
    given = _given(fields)
    if parse_choice("response_format", given.get("response_format"), ("b64_json", "url")) == "url":
        raise invalid_value("response_format", "url", "b64_json: images are not kept, so they have no address")
    return StillFormat(parse_choice("output_format", given.get("output_format"), tuple(StillFormat)) or "png")


def whole_number(name: str, value: object, low: int, high: int, of: str = "") -> int:
    """An integer, or one as text; raises INVALID_VALUE naming the range."""
    number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise invalid_value(name, value, f"an integer within {low}..{high}{of}")
    return number


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    """Null, and a form's empty field, are as absent; an empty prompt is one that says nothing."""
    return {name: value for name, value in fields.items() if value is not None and (value != "" or name == "prompt")}


def _settings(
    given: Mapping[str, object],
    model: str,
    traits: VideoTraits,
    num_frames: int,
    hints: frozenset[str],
    limits: Limits,
) -> ClipSettings:
    size = _parse_size(given.get("size"), traits, model)
    seed = parse_seed(given.get("seed"))
    request = VideoRequest(
        prompt=parse_prompt("prompt", given, traits),
        width=size.width,
        height=size.height,
        num_frames=num_frames,
        seed=secrets.randbits(63) if seed is None else seed,
        negative_prompt=_parse_negative(given, traits, model),
        steps=_parse_steps(given.get("num_inference_steps"), traits, model),
        guidance=_parse_guidance(given.get("guidance_scale"), traits, model),
        picture=_parse_picture(given.get("input_reference"), traits, model, limits),
    )
    return ClipSettings(model=model, request=request, fps=traits.fps, ignored=tuple(sorted(given.keys() & hints)))


def _resolve_model(name: object, models: Mapping[str, Pipeline], kind: str) -> str:
    able = [known for known, model in models.items() if kind in model.video.kinds]
    made = "makes video" if kind == "video" else "makes images"
    if not able:
        raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, f"no model of this server {made}", param="model")
    if name is None:
        return able[0]
    if not isinstance(name, str):
        raise invalid_value("model", name, "a string")
    if name not in able:
        message = f"there is no model {name[:60]!r} that {made}; this server has {', '.join(able)}"
        raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
    return name


def _refuse_names(given: Mapping[str, object], known: frozenset[str], hints: frozenset[str], model: str) -> None:
    for name in given:
        if name in known | hints:
            continue
        if name in _UNSERVED | VIDEO_FIELDS | IMAGE_FIELDS:
            if given[name] is False:
                continue
            raise _unsupported(name, model)
        raise unknown_field(name)


def _unsupported(name: str, model: str) -> StreamSynthError:
    message = f"{name} is not supported here, with the model {model!r}"
    return StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, message, param=name)


def _parse_size(value: object, traits: VideoTraits, model: str) -> Size:
    if value is None or value == "auto":
        return traits.sizes[0]
    sides = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size = Size(width=int(sides[1]), height=int(sides[2])) if sides else None
    if size is None or not traits.offers(size):
        raise invalid_value("size", value, f"a size of the model {model!r}: {traits.describe_sizes()}")
    return size


def _parse_length(given: Mapping[str, object], traits: VideoTraits, model: str) -> int:
    """The number of pictures: exactly what was asked for, or what is nearest to the seconds that were."""
    if "num_frames" in given:
        if "seconds" in given:
            raise invalid_value("num_frames", given["num_frames"], "absent when seconds is given: both say how long")
        frames = whole_number("num_frames", given["num_frames"], 1, traits.max_frames, f" for the model {model!r}")
        if (frames - 1) % traits.frame_step:
            limit = f"1 more than a multiple of {traits.frame_step} for the model {model!r}"
            raise invalid_value("num_frames", given["num_frames"], limit)
        return frames
    if "seconds" in given:
        return _nearest(_parse_seconds(given["seconds"], traits, model) * traits.fps, traits)
    return traits.default_frames or _nearest(_DEFAULT_S * traits.fps, traits)


def _parse_seconds(value: object, traits: VideoTraits, model: str) -> float:
    most = traits.max_frames / traits.fps
    seconds = _as_number(value)
    if not 0 < seconds <= most:
        raise invalid_value("seconds", value, f"a number above 0 and at most {most:g} for the model {model!r}")
    return seconds


def _nearest(frames: float, traits: VideoTraits) -> int:
    step = traits.frame_step
    most = (traits.max_frames - 1) // step
    return 1 + step * min(max(round((frames - 1) / step), 0), most)


def _parse_negative(given: Mapping[str, object], traits: VideoTraits, model: str) -> str | None:
    if "negative_prompt" not in given:
        return None
    if not traits.negative_prompt:
        raise _unsupported("negative_prompt", model)
    return parse_prompt("negative_prompt", given, traits)


def _parse_steps(value: object, traits: VideoTraits, model: str) -> int | None:
    if value is None:
        return None
    if traits.max_steps is None:
        raise _unsupported("num_inference_steps", model)
    return whole_number("num_inference_steps", value, 1, traits.max_steps, f" for the model {model!r}")


def _parse_guidance(value: object, traits: VideoTraits, model: str) -> float | None:
    if value is None:
        return None
    if not traits.guidance:
        raise _unsupported("guidance_scale", model)
    scale = _as_number(value)
    if not 0 <= scale <= MAX_GUIDANCE:
        raise invalid_value("guidance_scale", value, f"a number within 0..{MAX_GUIDANCE:g}")
    return scale


def _parse_picture(value: object, traits: VideoTraits, model: str, limits: Limits) -> bytes | None:
    if value is None:
        if traits.picture is PictureUse.REQUIRED:
            message = f"input_reference is missing: the model {model!r} begins with a picture"
            raise StreamSynthError(ErrorCode.MISSING_FIELD, message, param="input_reference")
        return None
    if traits.picture is PictureUse.NONE:
        raise _unsupported("input_reference", model)
    return parse_picture("input_reference", value, limits.reference_pixels)


def _as_number(value: object) -> float:
    """NaN for what is none."""
    try:
        return float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan
