"""How large a picture file is when decoded, read from its first bytes: asked before anything is decoded."""

from __future__ import annotations

import struct

_SIZED_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG's start-of-frame segments
_WEBP_HEADER_BYTES = 30
_BARE_MARKERS = {0x01, *range(0xD0, 0xD9)}


def picture_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a PNG, JPEG or WebP file; None if it is none of these, or is cut off before it says."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            width, height = struct.unpack_from(">II", data, 16)
            return width, height
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= _WEBP_HEADER_BYTES:
            return _webp(data)
    except (struct.error, IndexError):
        pass
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in _BARE_MARKERS:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _SIZED_MARKERS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = struct.unpack_from("<I", data, 21)[0]
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case _:
            return None
