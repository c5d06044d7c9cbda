"""From a request to the arguments of a pipeline's call, and from its result to pictures."""

from __future__ import annotations

import io
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.models.diffusers.abilities import CallShape
from streamsynth.video import VideoRequest

MAX_PICTURE_PIXELS = 1 << 26
_NOTHING = " "
"""The negative prompt of those that guide only where there is one, as their cards give it."""


def arguments(request: VideoRequest, call: CallShape) -> dict[str, Any]:
    """The call's keywords. The noise comes from the host, so that a seed means the same on every device."""
    assert request.seed is not None
    given: dict[str, Any] = {
        "prompt": request.prompt,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
        "output_type": "pt",
        "return_dict": False,
    }
    if call.sized:
        given |= {"width": request.width, "height": request.height}
    if call.frames is not None:
        given[call.frames] = request.num_frames
    if request.steps is not None:
        given["num_inference_steps"] = request.steps
    if call.guidance is not None and request.guidance is not None:
        given[call.guidance] = request.guidance
    if request.negative_prompt is not None:
        given["negative_prompt"] = request.negative_prompt
    elif call.guidance == "true_cfg_scale":
        given["negative_prompt"] = _NOTHING
    if request.picture is not None:
        picture = read_picture(request.picture)
        given["image"] = picture if call.sized else picture.resize((request.width, request.height))
    if "use_resolution_binning" in call.parameters:
        given["use_resolution_binning"] = False  # A size is that size, not the nearest of a list, stretched.
    return given


def read_picture(data: bytes) -> Image.Image:
    """A PNG, JPEG or WebP file's; raises INVALID_VALUE for anything else."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP")) as file:
            if file.width * file.height > MAX_PICTURE_PIXELS:
                limit = f"a picture of at most {MAX_PICTURE_PIXELS} pixels"
                raise invalid_value("picture", f"{file.width}x{file.height}", limit)
            return file.convert("RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
        raise invalid_value("picture", f"{len(data)} bytes", "a PNG, JPEG or WebP file") from None


def pictures(result: tuple[Any, ...]) -> Tensor:
    """uint8 (n, height, width, 3) of what a call with output_type "pt" returned, rounded as diffusers rounds."""
    made = result[0]
    if len(result) > 1 and isinstance(result[1], list) and any(result[1]):
        message = "the model's safety checker holds the picture back"
        raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="prompt")
    if isinstance(made, list):
        made = torch.stack([torch.as_tensor(each) for each in made])
    if made.dim() == 5:
        made = made[0]
    if made.dim() != 4 or made.shape[1] != 3:
        message = f"the pipeline made an array of {tuple(made.shape)}; pictures were due"
        raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
    return made.float().mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
