"""What a request may ask for: what the model declares, and what the run at start-up has shown to fit. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.video import MAX_GUIDANCE, PictureUse, Size, VideoRequest, VideoTraits


@dataclass(frozen=True, slots=True)
class Envelope:
    """The largest clip that was made at start-up."""

    size: Size
    frames: int

    @property
    def volume(self) -> int:
        return self.size.width * self.size.height * self.frames


def within(traits: VideoTraits, envelope: Envelope) -> VideoTraits:
    """The traits, less the sizes that do not fit at all, and frames that do not at the smallest."""
    pixels = envelope.volume
    sizes = tuple(size for size in traits.sizes if size.width * size.height <= pixels)
    ranged = traits.size_range
    if ranged is not None:
        ranged = replace(ranged, max_pixels=min(ranged.max_pixels, pixels))
    return replace(traits, sizes=sizes, size_range=ranged)


def settle(request: VideoRequest, traits: VideoTraits) -> VideoRequest:
    """The request with the model's number of frames where it says none."""
    return request if request.num_frames is not None else replace(request, num_frames=traits.default_frames or 1)


def check_request(request: VideoRequest, traits: VideoTraits, envelope: Envelope) -> None:
    """Raise INVALID_VALUE, UNSUPPORTED_FIELD or MISSING_FIELD for the first field that cannot be served."""
    size = Size(width=request.width, height=request.height)
    if not traits.offers(size):
        name, value = _odd_side(size, traits)
        raise invalid_value(name, value, f"part of a size that the model offers: {traits.describe_sizes()}")
    _check_frames(request.num_frames, size, traits, envelope)
    if len(request.prompt) > traits.max_prompt_characters:
        raise invalid_value("prompt", request.prompt, f"at most {traits.max_prompt_characters} characters")
    if request.steps is not None and not 1 <= request.steps <= (traits.max_steps or 0):
        raise invalid_value("steps", request.steps, f"a whole number from 1 to {traits.max_steps}")
    _check_guidance(request, traits)
    if request.picture is not None and traits.picture is PictureUse.NONE:
        raise _unsupported("picture")
    if request.picture is None and traits.picture is PictureUse.REQUIRED:
        raise StreamSynthError(ErrorCode.MISSING_FIELD, "the model begins with a picture", param="picture")


def _odd_side(size: Size, traits: VideoTraits) -> tuple[str, int]:
    """The side to name: the one that no offered size has, else the width."""
    ranged = traits.size_range
    for name, value in (("width", size.width), ("height", size.height)):
        listed = any(getattr(offered, name) == value for offered in traits.sizes)
        fits = ranged is not None and ranged.min_side <= value <= ranged.max_side and value % ranged.multiple == 0
        if not listed and not fits:
            return name, value
    return "width", size.width


def _check_frames(frames: int | None, size: Size, traits: VideoTraits, envelope: Envelope) -> None:
    if frames is None or not 1 <= frames <= traits.max_frames or (frames - 1) % traits.frame_step:
        some = f", one more than a multiple of {traits.frame_step}" if traits.frame_step > 1 else ""
        raise invalid_value("num_frames", frames, f"a whole number from 1 to {traits.max_frames}{some}")
    room = envelope.volume // (size.width * size.height)
    if room < 1:
        raise invalid_value("width", size.width, f"that of a size of {envelope.volume} pixels, the most that fit here")
    if frames > room:
        raise invalid_value("num_frames", frames, f"at most {room} at {size}: more do not fit the device's memory")


def _check_guidance(request: VideoRequest, traits: VideoTraits) -> None:
    guidance = request.guidance
    if guidance is not None:
        if not traits.guidance:
            raise _unsupported("guidance")
        if not (math.isfinite(guidance) and 0 <= guidance <= MAX_GUIDANCE):
            raise invalid_value("guidance", guidance, f"a number from 0 to {MAX_GUIDANCE:g}")
    if request.negative_prompt is None:
        return
    if not traits.negative_prompt:
        raise _unsupported("negative_prompt")
    if guidance is not None and guidance <= 1:
        raise invalid_value("negative_prompt", request.negative_prompt, "left out where guidance is 1 or less")


def _unsupported(name: str) -> StreamSynthError:
    return StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, f"the model does not use {name}", param=name)
