"""A clip of the largest kind, made before the first request: it measures what fits, and nothing is first afterwards."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence

import torch
from PIL import Image
from torch import Tensor

from streamsynth.engine.diffusion.clip import ClipModel
from streamsynth.engine.diffusion.engine import ClipEngine, check_shape
from streamsynth.engine.diffusion.envelope import Envelope
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.video import PictureUse, Size, VideoRequest, VideoTraits

logger = logging.getLogger(__name__)

PROMPT = "the sea"


def rehearsed_engine(model: ClipModel) -> ClipEngine:
    """An engine for what could be made: the model's largest clip, as many at once as it has room for, or the largest
    below it that fits. Raises START_FAILED if none does, and what the model raises."""
    _reset_peak(model.device)
    try:
        envelope = _largest_that_fits(model)
    except BaseException:
        model.close()
        raise
    return ClipEngine(model, envelope, _measured(model.device))


def _largest_that_fits(model: ClipModel) -> Envelope:
    for envelope in _candidates(model.traits):
        try:
            make_clips(model, model.capacity * [clip_request(model, envelope.size, envelope.frames)])
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            logger.warning("%d frames of %s do not fit the device", envelope.frames, envelope.size)
        else:
            return envelope
    message = f"no clip of {', '.join(str(size) for size in model.traits.sizes)} fits the device"
    raise StreamSynthError(ErrorCode.START_FAILED, message)


def _candidates(traits: VideoTraits) -> Iterator[Envelope]:
    """From the largest clip on: half the frames, then fewer pixels."""
    sizes = sorted(traits.sizes, key=lambda size: -size.width * size.height)
    for size in sizes:
        frames = traits.max_frames
        while True:
            yield Envelope(size, frames)
            if frames == 1:
                break
            frames = (frames - 1) // 2 // traits.frame_step * traits.frame_step + 1


def clip_request(model: ClipModel, size: Size, frames: int) -> VideoRequest:
    """A clip of a few steps."""
    return VideoRequest(
        prompt=PROMPT,
        width=size.width,
        height=size.height,
        num_frames=frames,
        seed=0,
        steps=model.fewest_steps,
        picture=_grey(size) if model.traits.picture is PictureUse.REQUIRED else None,
    )


def make_clips(model: ClipModel, requests: Sequence[VideoRequest]) -> list[Tensor]:
    """The pictures of these, made at once; raises what one of them raised, and ENGINE_FAILED for other shapes."""
    clips = [model.begin(request) for request in requests]
    try:
        while any(clip.pictures is None for clip in clips):
            model.advance([clip for clip in clips if clip.pictures is None])
            for clip in clips:
                if clip.error is not None:
                    raise clip.error
        made = [clip.pictures for clip in clips if clip.pictures is not None]
        for pictures, request in zip(made, requests, strict=True):
            check_shape(pictures, request)
        return made
    finally:
        for clip in clips:
            clip.close()


def _grey(size: Size) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size.width, size.height), (128, 128, 128)).save(file, "PNG")
    return file.getvalue()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _measured(device: torch.device) -> dict[str, int]:
    """What the allocator had at its peak, and what the whole device holds now, others' memory included (V68)."""
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocator_peak_bytes": torch.cuda.max_memory_allocated(device),
        "allocator_reserved_bytes": torch.cuda.memory_reserved(device),
        "device_used_bytes": total - free,
    }
