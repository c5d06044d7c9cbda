"""Samples in, the bytes of one audio stream out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamsynth.codecs.compressed import CompressedCarrier
from streamsynth.codecs.formats import CONTENT_TYPES, DEFAULT_SAMPLE_RATE, AudioFormat, check_sample_rate
from streamsynth.codecs.quantise import checked
from streamsynth.codecs.resample import Resampler
from streamsynth.codecs.wav import LiveWavCarrier, PcmCarrier, WholeWavCarrier
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value


class Carrier(Protocol):
    """What turns samples at the final rate into the bytes of one format."""

    def write(self, samples: npt.NDArray[np.float32]) -> bytes: ...

    def finish(self) -> bytes: ...

    def close(self) -> None: ...


class AudioEncoder:
    """One stream of one format: mono, one container from the first `encode` to `finish`.

    Not for use by two threads at once, though each call may be on another thread. The memory held does not grow with
    the stream, except for a finished file (`live=False`) of wav or flac, which is held until `finish`.
    """

    channels = 1

    def __init__(
        self,
        format: AudioFormat,  # noqa: A002 - the wire's own word
        source_rate: int,
        sample_rate: int,
        open_carrier: Callable[[], Carrier],
    ) -> None:
        self.format = format
        self.source_rate = source_rate
        self.sample_rate = sample_rate
        self.content_type = CONTENT_TYPES[format]
        self.blocking = format not in (AudioFormat.PCM, AudioFormat.WAV)
        """Whether `encode` and `finish` take long enough to belong in a thread."""
        self.samples = 0
        """Samples out so far at `sample_rate`; after `finish`, what decodes (priming of mp3 and aac excepted)."""
        self._resampler = Resampler(source_rate, sample_rate)
        self._open_carrier = open_carrier
        self._carrier: Carrier | None = None
        self._closed = False

    def encode(self, samples: npt.NDArray[np.float32]) -> bytes:
        """Append samples of shape (n,) at `source_rate`; the bytes that are ready now, perhaps none.

        The first call opens the container. Raises StreamSynthError: ENGINE_FAILED for samples that are not finite,
        ENCODER_FAILED for anything that the encoder raised. After an error the encoder is closed.
        """
        return self._guarded(lambda: self._write(self._resampler.push(checked(samples))))

    def finish(self) -> bytes:
        """The rest of the audio and the container's end, then close. Without samples: an empty container."""
        encoded = self._guarded(lambda: self._write(self._resampler.finish()) + self._opened().finish())
        self.close()
        return encoded

    def close(self) -> None:
        """Give everything back, also half-way. Idempotent; never raises."""
        self._closed = True
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.close()

    def _write(self, samples: npt.NDArray[np.float32]) -> bytes:
        self.samples += len(samples)
        return self._opened().write(samples)

    def _opened(self) -> Carrier:
        if self._carrier is None:
            self._carrier = self._open_carrier()
        return self._carrier

    def _guarded(self, step: Callable[[], bytes]) -> bytes:
        if self._closed:
            raise StreamSynthError(ErrorCode.ENCODER_FAILED, f"the {self.format.value} encoder is closed")
        try:
            return step()
        except StreamSynthError:
            self.close()
            raise
        except Exception as error:
            self.close()
            message = f"the {self.format.value} encoder failed: {error}"
            raise StreamSynthError(ErrorCode.ENCODER_FAILED, message) from error


def open_encoder(
    format: AudioFormat,  # noqa: A002 - the wire's own word
    *,
    source_rate: int,
    sample_rate: int | None = None,
    live: bool = True,
) -> AudioEncoder:
    """An encoder from `source_rate` to `sample_rate` (None: 24000).

    `live` False makes a finished file with true sizes where the format has sizes (wav, flac). Does not block: the codec
    itself is opened by the first `encode`. Raises StreamSynthError(INVALID_VALUE) for a rate that the format lacks.
    """
    rate = DEFAULT_SAMPLE_RATE if sample_rate is None else sample_rate
    check_sample_rate(format, rate)
    if source_rate < 1:
        raise invalid_value("source_rate", source_rate, "at least 1 Hz")
    return AudioEncoder(format, source_rate, rate, lambda: _open_carrier(format, rate, live=live))


def _open_carrier(format: AudioFormat, sample_rate: int, *, live: bool) -> Carrier:  # noqa: A002 - the wire's own word
    match format:
        case AudioFormat.PCM:
            return PcmCarrier()
        case AudioFormat.WAV:
            return LiveWavCarrier(sample_rate) if live else WholeWavCarrier(sample_rate)
        case _:
            return CompressedCarrier(format, sample_rate, live=live)
