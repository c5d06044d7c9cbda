"""A whole clip as one mp4 file, written as its pictures come: the file may be larger than memory."""

from __future__ import annotations

from streamsynth.codecs.pictures import Pictures, VideoFormat, open_video_encoder

KEYFRAME_S = 2
"""Where a player can jump to: every so many seconds."""
_PAYLOAD_BYTES = 1 << 20


class ClipEncoder:
    """The bytes of one file, in order. Blocks; not for use by two threads at once. Raises ENCODER_FAILED.

    `frames` have gone in.
    """

    def __init__(self, *, width: int, height: int, fps: int) -> None:
        self._encoder = open_video_encoder(
            VideoFormat.M4S, width=width, height=height, fps=fps, payload_bytes=_PAYLOAD_BYTES
        )
        self._group = KEYFRAME_S * fps
        self.frames = 0

    def encode(self, pictures: Pictures) -> bytes:
        """What these pictures (n, height, width, 3) add; the first ones bring the file's header."""
        parts = [self._encoder.header()] if self.frames == 0 and len(pictures) else []
        at = 0
        while at < len(pictures):
            into = self.frames % self._group
            piece = pictures[at : at + self._group - into]
            payloads = self._encoder.encode(piece, self.frames, keyframe=into == 0)
            parts += [payload.data for payload in payloads]
            self.frames += len(piece)
            at += len(piece)
        return b"".join(parts)

    def finish(self) -> bytes:
        """What follows the last picture."""
        return self._encoder.trailer()
