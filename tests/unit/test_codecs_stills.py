"""Pictures as files: a PNG is the picture to the bit, a JPEG close to it."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from streamsynth.codecs.stills import StillFormat, encode_still
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.testing.paint import COLOURS, Painted, paint


def decoded(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


@pytest.mark.parametrize("shape", [(128, 128, 3), (33, 65, 3), (1, 1, 3)])
def test_a_png_is_the_picture_to_the_bit(shape: tuple[int, int, int]) -> None:
    picture = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    data = encode_still(picture, StillFormat.PNG)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert np.array_equal(decoded(data), picture)


def test_a_jpeg_is_close_to_the_picture() -> None:
    said = Painted(frame=3, prompt_version=0, chunk=0, epoch=0, colour=COLOURS["green"])
    picture = paint(128, 128, said, 1)
    data = encode_still(picture, StillFormat.JPEG)
    assert data.startswith(b"\xff\xd8\xff") and data.endswith(b"\xff\xd9")
    assert np.abs(decoded(data).astype(int) - picture).mean() < 4


@pytest.mark.parametrize("format", StillFormat)
def test_what_is_no_picture_is_a_typed_error(format: StillFormat) -> None:  # noqa: A002
    with pytest.raises(StreamSynthError) as failed:
        encode_still(np.zeros((8, 8, 4), np.uint8), format)
    assert failed.value.code is ErrorCode.ENCODER_FAILED
