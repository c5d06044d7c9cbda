"""What a pipeline can be asked for, read off its call and its parts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from math import lcm
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.video import PictureUse, Size, SizeRange, VideoTraits

STEPPED = 16
"""Sides are multiples of it at least: what encoders of H.264 take without cutting."""

DEFAULT_FPS = 16

DEFAULT_SIDE = 1024
"""Of those that do not say it outside of their call."""

_MADE_FROM_A_PICTURE = ("ImageTo", "Img2", "Image2")
_ALWAYS_GIVEN = ("prompt", "num_inference_steps", "generator", "output_type", "return_dict")
_SET_HERE = frozenset({"self", "prompt", "image", "height", "width", "args", "kwargs"})


@dataclass(frozen=True, slots=True)
class CallShape:
    """Which of a call's parameters mean what. `frames` and `guidance` are the names of parameters, if there are any.
    What is not `sized` makes pictures of the size of the one that it is given."""

    parameters: Mapping[str, Parameter]
    frames: str | None
    guidance: str | None
    negative_prompt: bool
    picture: PictureUse
    sized: bool

    @property
    def fewest_steps(self) -> int:
        """To be asked for so that two are made: what begins with a picture leaves out the first ones."""
        strength = self.default("strength")
        return 2 if strength is None else math.ceil(2 / strength)

    def default(self, name: str) -> Any:
        """None where there is no such parameter, or none set."""
        parameter = self.parameters.get(name)
        return None if parameter is None or parameter.default is Parameter.empty else parameter.default


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What the deployment says instead of the pipeline; None leaves it to that."""

    sizes: tuple[Size, ...] = ()
    fps: int | None = None
    max_frames: int | None = None
    max_steps: int = 100


def read_call(pipeline: Any) -> CallShape:
    """Raises START_FAILED, naming it, for a pipeline that wants what no request carries, or takes no prompt."""
    name = type(pipeline).__name__
    parameters = inspect.signature(type(pipeline).__call__).parameters
    needed = {each.name for each in parameters.values() if each.default is Parameter.empty} - _SET_HERE
    if needed:
        raise _unserved(f"{name} needs {', '.join(sorted(needed))}, which no request carries")
    missing = [each for each in _ALWAYS_GIVEN if each not in parameters]
    if missing:
        raise _unserved(f"{name} takes no {missing[0]}")
    if getattr(pipeline, "scheduler", None) is None:
        raise _unserved(f"{name} has no scheduler whose steps can be counted")
    sized = {"width", "height"} <= parameters.keys()
    if not sized and "image" not in parameters:
        raise _unserved(f"{name} takes no width and height")
    true_guidance = parameters.get("true_cfg_scale")
    # Some have both: guidance that is an input of the model, and pairs beside it that are off unless asked for.
    guided_pairs = true_guidance is None or (true_guidance.default or 0) > 1
    distilled = parameters.get("guidance_scale")
    guidance = "guidance_scale" if distilled is not None and distilled.default is not None else None
    return CallShape(
        parameters=parameters,
        frames=next((each for each in ("num_frames", "video_length", "frames") if each in parameters), None),
        guidance="true_cfg_scale" if true_guidance is not None and guided_pairs else guidance,
        negative_prompt="negative_prompt" in parameters and guided_pairs,
        picture=_picture_use(name, parameters.get("image"), sized),
        sized=sized,
    )


def read_traits(pipeline: Any, call: CallShape, bounds: Bounds) -> VideoTraits:
    """What the pipeline makes, within the bounds. Raises START_FAILED for a size that it cannot make."""
    multiple = lcm(STEPPED, _spatial_factor(pipeline) * _patch(pipeline))
    sizes = bounds.sizes or (_default_size(pipeline, call),)
    for size in sizes:
        if size.width % multiple or size.height % multiple:
            raise _unserved(f"{type(pipeline).__name__} makes sides that are multiples of {multiple}, not {size}")
    frames = _frames(pipeline, call, bounds)
    fps = bounds.fps or next((value for value in map(call.default, ("frame_rate", "fps")) if value), DEFAULT_FPS)
    return VideoTraits(
        sizes=sizes,
        size_range=_range(sizes, multiple),
        fps=int(fps) if call.frames else 1,
        chunk_frames=frames,
        first_chunk_frames=frames,
        interactions=frozenset(),
        max_frames=frames,
        default_frames=frames,
        frame_step=_temporal_factor(pipeline) if call.frames else 1,
        negative_prompt=call.negative_prompt,
        guidance=call.guidance is not None,
        kinds=frozenset({"video" if call.frames else "image"}),
        realtime=False,
        max_steps=bounds.max_steps,
        picture=call.picture,
    )


def _range(sizes: tuple[Size, ...], multiple: int) -> SizeRange:
    """Other shapes of no more pixels: from half the shortest side to twice the longest."""
    sides = [side for size in sizes for side in (size.width, size.height)]
    return SizeRange(
        multiple=multiple,
        min_side=-(-min(sides) // (2 * multiple)) * multiple,
        max_side=2 * max(sides),
        max_pixels=max(size.width * size.height for size in sizes),
    )


def _picture_use(name: str, image: Parameter | None, sized: bool) -> PictureUse:
    if image is None:
        return PictureUse.NONE
    needed = not sized or image.default is Parameter.empty or any(word in name for word in _MADE_FROM_A_PICTURE)
    return PictureUse.REQUIRED if needed else PictureUse.OPTIONAL


def _frames(pipeline: Any, call: CallShape, bounds: Bounds) -> int:
    if call.frames is None:
        return 1
    said = call.default(call.frames) or getattr(_denoiser(pipeline).config, "sample_frames", None)
    frames = bounds.max_frames or said
    if frames is None:
        raise _unserved(f"{type(pipeline).__name__} does not say how many frames it makes: set max_frames")
    step = _temporal_factor(pipeline)
    return int(frames - 1) // step * step + 1


def _default_size(pipeline: Any, call: CallShape) -> Size:
    width, height = call.default("width"), call.default("height")
    if width and height:
        return Size(width=width, height=height)
    config = _denoiser(pipeline).config
    factor = _spatial_factor(pipeline)
    side = getattr(pipeline, "default_sample_size", None) or getattr(config, "sample_size", None)
    high = getattr(config, "sample_height", None) or side
    wide = getattr(config, "sample_width", None) or side
    if not isinstance(high, int) or not isinstance(wide, int):
        return Size(width=DEFAULT_SIDE, height=DEFAULT_SIDE)
    return Size(width=wide * factor, height=high * factor)


def _denoiser(pipeline: Any) -> Any:
    return getattr(pipeline, "transformer", None) or pipeline.unet


def _spatial_factor(pipeline: Any) -> int:
    names = ("vae_scale_factor_spatial", "vae_spatial_compression_ratio", "vae_scale_factor")
    return next((int(factor) for factor in (getattr(pipeline, name, None) for name in names) if factor), 8)


def _temporal_factor(pipeline: Any) -> int:
    names = ("vae_scale_factor_temporal", "vae_temporal_compression_ratio")
    return next((int(factor) for factor in (getattr(pipeline, name, None) for name in names) if factor), 1)


def _patch(pipeline: Any) -> int:
    """The larger side of a denoiser's patch, in latent pixels."""
    patch = getattr(_denoiser(pipeline).config, "patch_size", 1)
    sides = patch if isinstance(patch, (list, tuple)) else (patch,)
    return max((side for side in sides if isinstance(side, int)), default=1)


def _unserved(message: str) -> StreamSynthError:
    return StreamSynthError(ErrorCode.START_FAILED, message)
