"""A picture's size is known from its first bytes, in every form that its file can have."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from streamsynth.codecs.picture_size import picture_size
from streamsynth.codecs.stills import StillFormat, encode_still

FORMS = {
    "png": {"format": "PNG"},
    "jpeg": {"format": "JPEG"},
    "progressive jpeg": {"format": "JPEG", "progressive": True, "comment": b"x" * 300},
    "webp": {"format": "WEBP"},
    "lossless webp": {"format": "WEBP", "lossless": True},
    "webp with a profile": {"format": "WEBP", "icc_profile": b"p" * 200},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_size_is_that_of_the_picture(form: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (637, 41), "red").save(file, **FORMS[form])
    assert picture_size(file.getvalue()) == (637, 41)
    assert picture_size(file.getvalue()[:900]) in {(637, 41), None}


@pytest.mark.parametrize("form", StillFormat)
def test_the_size_of_what_is_written_here_is_read_here(form: StillFormat) -> None:
    assert picture_size(encode_still(np.zeros((41, 63, 3), np.uint8), form)) == (63, 41)


@pytest.mark.parametrize(
    "data", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF____WEBPVP8X", b"x" * 99]
)
def test_what_is_no_such_file_or_is_cut_off_has_none(data: bytes) -> None:
    assert picture_size(data) is None
