"""Uncompressed carriers: raw s16le, and the same behind a RIFF header."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from streamsynth.codecs.quantise import to_s16
from streamsynth.errors import invalid_value

_UNKNOWN = 0xFFFF_FFFF
_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_RIFF_REST = _HEADER.size - 8
_PCM = 1
_SAMPLE_BYTES = 2


def wav_header(sample_rate: int, channels: int = 1, samples: int | None = None) -> bytes:
    """The 44 bytes before s16le audio. `samples` (per channel) None: a live stream, both sizes 0xFFFFFFFF.

    Raises StreamSynthError(INVALID_VALUE) if the audio is longer than RIFF's 32-bit sizes can say.
    """
    frame_bytes = channels * _SAMPLE_BYTES
    longest = (_UNKNOWN - 1 - _RIFF_REST) // frame_bytes
    if samples is not None and samples > longest:
        raise invalid_value("samples", samples, f"at most {longest} in one wav file")
    data_bytes = _UNKNOWN if samples is None else samples * frame_bytes
    riff_bytes = _UNKNOWN if samples is None else _RIFF_REST + data_bytes
    riff = (b"RIFF", riff_bytes, b"WAVE")
    fmt = (b"fmt ", 16, _PCM, channels, sample_rate, sample_rate * frame_bytes, frame_bytes, _SAMPLE_BYTES * 8)
    return _HEADER.pack(*riff, *fmt, b"data", data_bytes)


class PcmCarrier:
    """s16le and nothing else; every piece holds whole samples."""

    def write(self, samples: npt.NDArray[np.float32]) -> bytes:
        return to_s16(samples).tobytes()

    def finish(self) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing is held."""


class LiveWavCarrier(PcmCarrier):
    """One header with the first piece, then samples only: no trailer, no second header."""

    def __init__(self, sample_rate: int) -> None:
        self._header = wav_header(sample_rate)

    def write(self, samples: npt.NDArray[np.float32]) -> bytes:
        return self._take_header() + super().write(samples)

    def finish(self) -> bytes:
        return self._take_header()

    def _take_header(self) -> bytes:
        header, self._header = self._header, b""
        return header


class WholeWavCarrier:
    """A finished file with true sizes: holds everything (2 bytes a sample) until `finish`, which returns all of it."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._audio = bytearray()

    def write(self, samples: npt.NDArray[np.float32]) -> bytes:
        self._audio += to_s16(samples).tobytes()
        return b""

    def finish(self) -> bytes:
        audio, self._audio = self._audio, bytearray()
        return wav_header(self._sample_rate, samples=len(audio) // _SAMPLE_BYTES) + audio

    def close(self) -> None:
        self._audio = bytearray()
