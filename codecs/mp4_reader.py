"""Reads back what `mp4_boxes` writes, fragment by fragment, without waiting for a next one."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import av
import numpy as np
import numpy.typing as npt

_CONTAINERS = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"})
_SKIPPED = {b"stsd": 8, b"avc1": 78}  # Bytes of own fields before the boxes inside.


class FragmentDecoder:
    """The pictures of a live stream with one H.264 track and no reordering. Blocks; not for two threads at once."""

    def __init__(self, header: bytes) -> None:
        context = av.CodecContext.create("h264", "r")
        assert isinstance(context, av.VideoCodecContext)
        context.extradata = _find(header, b"avcC")
        context.thread_count = 1  # Frame threads would hold pictures back.
        self._context = context

    def decode(self, fragment: bytes) -> list[npt.NDArray[np.uint8]]:
        """Every picture of the fragment, uint8 RGB (height, width, 3). Raises ValueError if it is not one of ours."""
        trun, media = _find(fragment, b"trun"), _find(fragment, b"mdat")
        (count,) = struct.unpack_from(">I", trun, 4)
        pictures: list[npt.NDArray[np.uint8]] = []
        start = 0
        for _, size, _ in struct.iter_unpack(">3I", trun[12 : 12 + 12 * count]):
            frames = self._context.decode(av.Packet(media[start : start + size]))
            pictures += [frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False) for frame in frames]
            start += size
        if len(pictures) != count:
            raise ValueError(f"{len(pictures)} pictures came of {count} coded ones")
        return pictures


def is_whole(data: bytes) -> bool:
    """Whether a fragment that may have come in pieces is complete: its `mdat` is there to its end."""
    position = 0
    while position + 8 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        if data[position + 4 : position + 8] == b"mdat":
            return position + size <= len(data)
        position += max(size, 8)
    return False


def _find(data: bytes, wanted: bytes) -> bytes:
    for name, content in _boxes(data):
        if name == wanted:
            return content
    raise ValueError(f"there is no {wanted.decode()} box")


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every box and what is in it, outer ones first."""
    position = 0
    while position + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, position)
        if not 8 <= size <= len(data) - position:
            raise ValueError(f"a box of {size} bytes where {len(data) - position} are left")
        content = data[position + 8 : position + size]
        yield name, content
        if name in _CONTAINERS or name in _SKIPPED:
            yield from _boxes(content[_SKIPPED.get(name, 0) :])
        position += size
