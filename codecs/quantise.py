"""From float32 to what a carrier holds: the one place where samples are rounded and limited."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamsynth.errors import ErrorCode, StreamSynthError

FULL_SCALE = 32_768


def checked(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The samples as contiguous float32. Raises StreamSynthError(ENGINE_FAILED) if one of them is not finite."""
    flat = np.ascontiguousarray(samples, dtype=np.float32)
    if not np.isfinite(flat).all():
        raise StreamSynthError(ErrorCode.ENGINE_FAILED, "the engine made samples that are not finite numbers")
    return flat


def saturate(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Limit to full scale, -1.0 to 1.0: louder samples saturate; nothing wraps, nothing is turned down."""
    return np.clip(samples, np.float32(-1), np.float32(1))


def to_s16(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """Little-endian s16: x * 32768 rounded to the nearest integer, ties to even, then saturated to -32768..32767.

    FFmpeg's and libsndfile's scale, so reading s16 as x / 32768 and writing it back changes nothing; 1.0 itself
    saturates by one step. No dither. The samples must be finite.
    """
    scaled = np.rint(samples * np.float32(FULL_SCALE))
    limited: npt.NDArray[np.int16] = np.clip(scaled, -FULL_SCALE, FULL_SCALE - 1).astype("<i2")
    return limited
