"""Changing the sample rate of a stream without a seam at its chunks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import soxr

_NOTHING = np.zeros(0, dtype=np.float32)
_STEEP = 6


def _quality(source_rate: int, sample_rate: int) -> str:
    # soxr works in blocks that grow with the ratio: from 48 to 8 kHz "HQ" (20 bits) holds 158 ms back, "MQ" (16 bits)
    # 75 ms. From 24 kHz it is 37 to 77 ms either way.
    steep = max(source_rate, sample_rate) >= _STEEP * min(source_rate, sample_rate)
    return "MQ" if steep else "HQ"


class Resampler:
    """soxr's stream in float32, mono.

    Any chunking gives the same bits as one call with everything: floor(n * sample_rate / source_rate + 1/2) samples for
    n. Output lags the input by the filter's block. With equal rates the samples pass through untouched.
    """

    def __init__(self, source_rate: int, sample_rate: int) -> None:
        self._stream = None
        if source_rate != sample_rate:
            quality = _quality(source_rate, sample_rate)
            self._stream = soxr.ResampleStream(source_rate, sample_rate, 1, dtype="float32", quality=quality)

    def push(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return samples if self._stream is None else self._resample(samples, last=False)

    def finish(self) -> npt.NDArray[np.float32]:
        """What is still inside; call once, at the end."""
        return _NOTHING if self._stream is None else self._resample(_NOTHING, last=True)

    def _resample(self, samples: npt.NDArray[np.float32], *, last: bool) -> npt.NDArray[np.float32]:
        assert self._stream is not None
        resampled: npt.NDArray[np.float32] = self._stream.resample_chunk(samples, last=last)
        return resampled
