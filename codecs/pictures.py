"""Video leaving the server: uint8 RGB pictures go in, the payloads of fMP4, JPEG or raw pictures come out at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Protocol, TypeVar

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

from streamsynth.codecs import mp4_boxes
from streamsynth.codecs.aac_track import AacTrack
from streamsynth.codecs.h264 import H264Encoder
from streamsynth.codecs.mp4_boxes import Run, Sample, VideoTrack
from streamsynth.errors import ErrorCode, StreamSynthError

Pictures = npt.NDArray[np.uint8]
Sound = npt.NDArray[np.float32]
T = TypeVar("T")

TICKS = 1000
"""Of a picture's duration, so that a second has a whole number of them: the timescale is fps times this."""

_JPEG_QUALITY = {"flags": "+qscale", "global_quality": str(118 * 3)}  # FF_QP2LAMBDA times the quantiser


class VideoFormat(StrEnum):
    """The values of a video session's `format`."""

    M4S = "m4s"
    JPEG = "jpeg"
    RAW = "raw"


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """What decodes to `frames` pictures from `first_frame` on, together with what came before it."""

    data: bytes
    frames: int
    first_frame: int


class Carrier(Protocol):
    """What turns pictures into the payloads of one format. `codec` and `mime` are known once it exists."""

    codec: str
    mime: str

    def header(self) -> bytes:
        """What precedes the first payload; empty where nothing does."""

    def encode(self, pictures: Pictures, first_frame: int, *, keyframe: bool, sound: Sound | None) -> list[Payload]: ...

    def trailer(self) -> bytes:
        """What follows the last payload; empty where nothing does."""


class VideoEncoder:
    """One stream of one format, from its first picture to its last. Blocks; not for use by two threads at once, though
    each call may be on another. Whatever goes in has come out when the call returns: nothing is held back.
    """

    def __init__(
        self,
        format: VideoFormat,  # noqa: A002 - the wire's own word
        shape: tuple[int, int, int],
        open_carrier: Callable[[], Carrier],
    ) -> None:
        self.format = format
        self._shape = shape
        self._open_carrier = open_carrier
        self._carrier: Carrier | None = None

    @property
    def codec(self) -> str:
        return self._opened().codec

    @property
    def mime(self) -> str:
        return self._opened().mime

    def header(self) -> bytes:
        return self._guarded(lambda: self._opened().header())

    def encode(
        self, pictures: Pictures, first_frame: int, *, keyframe: bool, sound: Sound | None = None
    ) -> list[Payload]:
        """Payloads for pictures (n, height, width, 3); a keyframe makes the first of them decodable by itself.

        `sound` is what is heard with them (m4s opened with a `sample_rate`): contiguous over all calls, whatever
        becomes of the pictures.

        Pictures between the last call's and `first_frame` were dropped: the first one is then shown from where those
        would have been, so that the stream has no hole. Raises StreamSynthError(ENCODER_FAILED).
        """

        def encode() -> list[Payload]:
            if pictures.shape[1:] != self._shape or pictures.dtype != np.uint8:
                raise ValueError(f"pictures of {pictures.dtype} {pictures.shape[1:]}; {self._shape} of uint8 are due")
            return self._opened().encode(pictures, first_frame, keyframe=keyframe, sound=sound)

        return self._guarded(encode)

    def trailer(self) -> bytes:
        return self._guarded(lambda: self._opened().trailer())

    def _opened(self) -> Carrier:
        if self._carrier is None:
            self._carrier = self._open_carrier()
        return self._carrier

    def _guarded(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except Exception as error:
            message = f"the {self.format.value} encoder failed: {error}"
            raise StreamSynthError(ErrorCode.ENCODER_FAILED, message) from error


def open_video_encoder(
    format: VideoFormat,  # noqa: A002 - the wire's own word
    *,
    width: int,
    height: int,
    fps: int,
    payload_bytes: int,
    sample_rate: int | None = None,
) -> VideoEncoder:
    """An encoder whose payloads aim at `payload_bytes` at most: only a single picture may need more. `sample_rate` adds
    a track of sound to an m4s.

    Does not block: the codec itself is opened by the first call. `width` and `height` must be even for m4s.
    """

    def open_carrier() -> Carrier:
        match format:
            case VideoFormat.M4S:
                return _FragmentCarrier(width, height, fps, payload_bytes, sample_rate)
            case VideoFormat.JPEG:
                return _JpegCarrier(width, height)
            case VideoFormat.RAW:
                return _RawCarrier()

    return VideoEncoder(format, (height, width, 3), open_carrier)


class _FragmentCarrier:
    def __init__(self, width: int, height: int, fps: int, payload_bytes: int, sample_rate: int | None) -> None:
        self._encoder = H264Encoder(width, height, fps)
        self._track = VideoTrack(width=width, height=height, timescale=fps * TICKS, avcc=self._encoder.avcc)
        self._payload_bytes = payload_bytes
        self._sequence = 0
        self._next_frame = 0
        self._sound = AacTrack(sample_rate) if sample_rate is not None else None
        self._sounded = 0
        self.codec = self._encoder.codec + (",mp4a.40.2" if self._sound else "")
        self.mime = f'video/mp4; codecs="{self.codec}"'

    def header(self) -> bytes:
        return mp4_boxes.header([self._track, self._sound.track] if self._sound else [self._track])

    def encode(self, pictures: Pictures, first_frame: int, *, keyframe: bool, sound: Sound | None) -> list[Payload]:
        heard = self._sound.encode(sound) if self._sound is not None and sound is not None else []
        payloads: list[Payload] = []
        samples: list[Sample] = []
        start = self._next_frame
        for offset, picture in enumerate(pictures):
            frame = first_frame + offset
            data = self._encoder.encode(picture, frame, keyframe=keyframe and offset == 0)
            if samples and sum(len(each.data) + 12 for each in samples) + len(data) + 256 > self._payload_bytes:
                payloads.append(self._payload(samples, start, frame - len(samples)))
                samples, start = [], frame
            samples.append(Sample(data, (frame + 1 - self._next_frame) * TICKS, keyframe and offset == 0))
            self._next_frame = frame + 1
        if samples:
            payloads.append(self._payload(samples, start, self._next_frame - len(samples), heard))
        return payloads

    def trailer(self) -> bytes:
        rest = self._sound.finish() if self._sound is not None else []
        return (self._fragment([self._heard(rest)]) if rest else b"") + mp4_boxes.ending()

    def _payload(
        self, samples: Sequence[Sample], start: int, first_frame: int, heard: Sequence[Sample] = ()
    ) -> Payload:
        runs = [Run(1, start * TICKS, samples), *([self._heard(heard)] if heard else [])]
        return Payload(self._fragment(runs), len(samples), first_frame)

    def _heard(self, frames: Sequence[Sample]) -> Run:
        run = Run(2, self._sounded, frames)
        self._sounded += sum(frame.duration for frame in frames)
        return run

    def _fragment(self, runs: Sequence[Run]) -> bytes:
        self._sequence += 1
        return mp4_boxes.fragment(self._sequence, runs)


class _JpegCarrier:
    codec = "jpeg"
    mime = "image/jpeg"

    def __init__(self, width: int, height: int) -> None:
        context = av.CodecContext.create("mjpeg", "w")
        assert isinstance(context, av.VideoCodecContext)
        context.width, context.height, context.pix_fmt = width, height, "yuvj420p"
        context.color_range = ColorRange.JPEG
        context.framerate = Fraction(1)
        context.options = _JPEG_QUALITY
        context.thread_count = 1
        self._context = context
        self._reformatter = VideoReformatter()

    def header(self) -> bytes:
        return b""

    def encode(self, pictures: Pictures, first_frame: int, *, keyframe: bool, sound: Sound | None) -> list[Payload]:
        return [Payload(self._picture(each), 1, first_frame + offset) for offset, each in enumerate(pictures)]

    def trailer(self) -> bytes:
        return b""

    def _picture(self, picture: npt.NDArray[np.uint8]) -> bytes:
        frame = self._reformatter.reformat(
            av.VideoFrame.from_ndarray(picture, format="rgb24"),
            format="yuvj420p",
            dst_colorspace=Colorspace.ITU601,
            dst_color_range=ColorRange.JPEG,
        )
        return b"".join(bytes(packet) for packet in self._context.encode(frame))


class _RawCarrier:
    codec = "rgb24"
    mime = "video/x-raw; format=rgb24"

    def header(self) -> bytes:
        return b""

    def encode(self, pictures: Pictures, first_frame: int, *, keyframe: bool, sound: Sound | None) -> list[Payload]:
        return [Payload(each.tobytes(), 1, first_frame + offset) for offset, each in enumerate(pictures)]

    def trailer(self) -> bytes:
        return b""
