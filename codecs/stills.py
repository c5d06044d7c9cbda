"""Single pictures as files: PNG, to the bit, and JPEG."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from streamsynth.codecs.pictures import VideoFormat, open_video_encoder
from streamsynth.errors import ErrorCode, StreamSynthError


class StillFormat(StrEnum):
    """The values of an image's `output_format`."""

    PNG = "png"
    JPEG = "jpeg"


STILL_TYPES: Mapping[StillFormat, str] = {StillFormat.PNG: "image/png", StillFormat.JPEG: "image/jpeg"}


def encode_still(picture: npt.NDArray[np.uint8], format: StillFormat) -> bytes:  # noqa: A002 - the wire's own word
    """One uint8 RGB picture (height, width, 3) as a file. Blocks. Raises StreamSynthError(ENCODER_FAILED)."""
    if format is StillFormat.JPEG:
        height, width = picture.shape[:2]
        encoder = open_video_encoder(VideoFormat.JPEG, width=width, height=height, fps=1, payload_bytes=1)
        return encoder.encode(picture[None], 0, keyframe=True)[0].data
    try:
        return _encode_png(picture)
    except Exception as error:
        raise StreamSynthError(ErrorCode.ENCODER_FAILED, f"the png encoder failed: {error}") from error


def _encode_png(picture: npt.NDArray[np.uint8]) -> bytes:
    context = av.CodecContext.create("png", "w")
    assert isinstance(context, av.VideoCodecContext)
    context.height, context.width = picture.shape[:2]
    context.pix_fmt = "rgb24"
    context.time_base = Fraction(1)
    context.thread_count = 1
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])
