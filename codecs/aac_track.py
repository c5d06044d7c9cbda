"""AAC beside the pictures: one encoder for the whole video, whose frames go into the fragments as they are ready."""

from __future__ import annotations

import av
import numpy as np
import numpy.typing as npt

from streamsynth.codecs.mp4_boxes import AudioTrack, Sample
from streamsynth.codecs.quantise import saturate

FRAME_SAMPLES = 1024
_BIT_RATE = 96_000


class AacTrack:
    """Mono float32 in, whole frames out; what does not fill one waits for the next call. Blocks.

    The encoder begins with FRAME_SAMPLES of silence of its own, which `track` tells players to skip. A frame comes out
    when the one after it is full, so the sound of a fragment ends at most two frames before its pictures do.
    """

    def __init__(self, sample_rate: int) -> None:
        context = av.CodecContext.create("aac", "w")
        assert isinstance(context, av.AudioCodecContext)
        context.sample_rate, context.layout, context.format = sample_rate, "mono", "fltp"
        context.bit_rate = _BIT_RATE
        context.options = {"aac_coder": "fast"}
        context.flags |= 1 << 22  # AV_CODEC_FLAG_GLOBAL_HEADER: no ADTS, the configuration goes into the header
        context.open()
        self._context = context
        self._sample_rate = sample_rate
        self._held = np.zeros(0, np.float32)
        self._taken = 0
        self.track = AudioTrack(
            sample_rate=sample_rate, channels=1, priming=FRAME_SAMPLES, asc=bytes(context.extradata or b"")
        )

    def encode(self, samples: npt.NDArray[np.float32]) -> list[Sample]:
        held = np.concatenate([self._held, saturate(samples)])
        whole = len(held) // FRAME_SAMPLES * FRAME_SAMPLES
        self._held = held[whole:]
        frames = held[:whole].reshape(-1, FRAME_SAMPLES)
        return [coded for frame in frames for coded in self._frame(frame)]

    def finish(self) -> list[Sample]:
        """The rest, filled up with silence to a whole frame."""
        rest = self.encode(np.zeros(-len(self._held) % FRAME_SAMPLES, np.float32))
        return rest + [Sample(bytes(packet), FRAME_SAMPLES) for packet in self._context.encode(None)]

    def _frame(self, samples: npt.NDArray[np.float32]) -> list[Sample]:
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="fltp", layout="mono")
        frame.sample_rate = self._sample_rate
        frame.pts = self._taken
        self._taken += FRAME_SAMPLES
        return [Sample(bytes(packet), FRAME_SAMPLES) for packet in self._context.encode(frame)]
