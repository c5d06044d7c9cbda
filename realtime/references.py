"""Pictures that a request brings: inline or uploaded, and known to be small enough before anything decodes them."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass

from streamsynth.codecs.picture_size import picture_size
from streamsynth.errors import ErrorCode, StreamSynthError


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that came in a form."""

    data: bytes


def parse_picture(name: str, value: object, most_pixels: int) -> bytes:
    """The bytes of a PNG, JPEG or WebP file from an upload, a data: URI, base64, or OpenAI's {"image_url": either}."""
    if isinstance(value, Mapping):
        value = value["image_url"] if value.keys() == {"image_url"} else None
    data = value.data if isinstance(value, Upload) else _inline(value)
    size = picture_size(data) if data is not None else None
    if data is None or size is None:
        message = f"{name} must be a PNG, JPEG or WebP file: uploaded, as a data: URI or as base64; nothing is fetched"
        raise StreamSynthError(ErrorCode.UNSUPPORTED_REFERENCE, message, param=name)
    width, height = size
    if width * height > most_pixels:
        message = f"{name} has {width}x{height} pixels; the limit is {most_pixels} in all"
        raise StreamSynthError(ErrorCode.UNSUPPORTED_REFERENCE, message, param=name)
    return data


def _inline(value: object) -> bytes | None:
    if not isinstance(value, str):
        return None
    head, comma, body = value.partition(",")
    if comma and not (head[:5].lower() == "data:" and head.endswith(";base64")):
        return None
    try:
        return b64decode(body if comma else head, validate=True)
    except (binascii.Error, ValueError):
        return None
