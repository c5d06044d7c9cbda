"""H.264 without delay: each picture that goes in comes out before the next one is asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt
from av.video.frame import PictureType
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc, VideoReformatter

_OPTIONS = {
    # A third of the time of the next slower preset (832x480, one thread), for as many bytes.
    "preset": "ultrafast",
    # No lookahead, no B-frames, no frame threads: the three ways in which x264 holds pictures back.
    "tune": "zerolatency",
    "crf": "20",
    "forced-idr": "1",
    "g": "1000000",
    "sc_threshold": "0",
}
_SPS, _PPS, _AUD = 7, 8, 9


class H264Encoder:
    """One encoder a video, for all of its life: yuv420p, BT.709, narrow range. Blocks; not for two threads at once.

    `avcc` is the decoder's configuration and `codec` its RFC 6381 name.
    """

    def __init__(self, width: int, height: int, fps: int) -> None:
        context = av.CodecContext.create("libx264", "w")
        assert isinstance(context, av.VideoCodecContext)
        context.width, context.height, context.pix_fmt = width, height, "yuv420p"
        context.time_base, context.framerate = Fraction(1, fps), Fraction(fps)
        context.color_range = ColorRange.MPEG
        context.colorspace = Colorspace.ITU709
        context.color_primaries, context.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
        context.thread_count = 1
        context.options = _OPTIONS
        context.flags |= 1 << 22  # AV_CODEC_FLAG_GLOBAL_HEADER: parameter sets go into the container's header
        context.open()
        self._context = context
        self._reformatter = VideoReformatter()
        parameters = {unit[0] & 31: unit for unit in _units(bytes(context.extradata or b""))}
        sps, pps = parameters[_SPS], parameters[_PPS]
        self.avcc = _avcc(sps, pps)
        self.codec = f"avc1.{sps[1:4].hex()}"

    def encode(self, picture: npt.NDArray[np.uint8], pts: int, *, keyframe: bool) -> bytes:
        """One picture, uint8 RGB (height, width, 3), as length-prefixed units. Raises RuntimeError if held back."""
        frame = self._reformatter.reformat(
            av.VideoFrame.from_ndarray(picture, format="rgb24"),
            format="yuv420p",
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
        )
        frame.pts = pts
        frame.pict_type = PictureType.I if keyframe else PictureType.NONE
        packets = self._context.encode(frame)
        if len(packets) != 1 or packets[0].pts != pts:
            raise RuntimeError(f"the encoder gave {len(packets)} packets for picture {pts}")
        kept = (unit for unit in _units(bytes(packets[0])) if unit[0] & 31 not in (_SPS, _PPS, _AUD))
        return b"".join(struct.pack(">I", len(unit)) + unit for unit in kept)


def _units(stream: bytes) -> Iterator[bytes]:
    """The NAL units of an Annex B byte stream."""
    for piece in stream.split(b"\0\0\1"):
        # The zero before a four-byte start code belongs to that; a unit never ends in zero.
        if unit := piece.rstrip(b"\0"):
            yield unit


def _avcc(sps: bytes, pps: bytes) -> bytes:
    record = b"\x01" + sps[1:4] + b"\xff\xe1" + struct.pack(">H", len(sps)) + sps
    record += b"\x01" + struct.pack(">H", len(pps)) + pps
    high = sps[1] in (100, 110, 122, 144)
    return record + (b"\xfd\xf8\xf8\x00" if high else b"")  # 4:2:0, 8 bits, no extension
