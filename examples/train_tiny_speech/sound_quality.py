"""How clean a voice sounds, without a listener: periodicity, spectrum and frame-rate artefacts.

Harmonics-to-noise follows Boersma (1993): the autocorrelation of a windowed frame, divided by the window's own, at the
best pitch lag.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import stft

from train_tiny_speech.frames import FRAME_SAMPLES, SAMPLE_RATE

Audio = NDArray[np.float32]

PITCH_RANGE_HZ = (75, 500)
_WINDOW = 960
_HOP = 240
_VOICED_CORRELATION = 0.45
_AUDIBLE_DB = 40
_OCTAVE_COST = 0.03
"""What a lag of twice the length must be better by, to be taken for the pitch."""


def harmonics_to_noise(audio: Audio) -> NDArray[np.float64]:
    """Decibels for each 10 ms frame; NaN where the frame is unvoiced or quiet."""
    curves, loudness = _periodicity(audio)
    peak = _interpolated_maximum(curves)
    voiced = (peak > _VOICED_CORRELATION) & (loudness > loudness.max() - _AUDIBLE_DB)
    peak = np.clip(peak, 1e-6, 1 - 1e-6)
    return np.where(voiced, 10 * np.log10(peak / (1 - peak)), np.nan)


def voiced_frames(audio: Audio) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pitch in hertz and level in decibels of each 10 ms frame that is voiced and not quiet."""
    curves, loudness = _periodicity(audio)
    lags = SAMPLE_RATE // PITCH_RANGE_HZ[1] + np.arange(curves.shape[1])
    best = (curves - _OCTAVE_COST * np.log2(lags)).argmax(1)
    voiced = (curves.max(1) > _VOICED_CORRELATION) & (loudness > loudness.max() - _AUDIBLE_DB)
    return SAMPLE_RATE / lags[best][voiced], loudness[voiced]


def _periodicity(audio: Audio) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each 10 ms frame the correlation with itself at every pitch lag, and the level in decibels."""
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(audio.astype(np.float64), _WINDOW // 2), _WINDOW)[::_HOP]
    frames = frames - frames.mean(1, keepdims=True)
    window = np.hanning(_WINDOW)
    shortest, longest = (SAMPLE_RATE // hz for hz in reversed(PITCH_RANGE_HZ))
    correlation = _autocorrelation(frames * window, longest + 2)
    correlation /= np.maximum(correlation[:, :1], 1e-12) * (
        _autocorrelation(window[None], longest + 2) / (window**2).sum()
    )
    return correlation[:, shortest : longest + 1], 10 * np.log10((frames**2).mean(1) + 1e-12)


def log_spectral_distance(audio: Audio, reference: Audio) -> NDArray[np.float64]:
    """Root mean square difference of log spectra in dB for each audible 10.7 ms frame, up to 8 kHz."""
    length = min(len(audio), len(reference))
    ours, theirs = (_log_spectrogram(x[:length]) for x in (audio, reference))
    loudness = 10 * np.log10((10 ** (theirs / 10)).sum(0))
    audible = loudness > loudness.max() - _AUDIBLE_DB
    distance: NDArray[np.float64] = np.sqrt(((ours - theirs)[:, audible] ** 2).mean(0))
    return distance


def striping(audio: Audio) -> float:
    """Peak to peak, in dB, of the typical 2 to 8 kHz level over the eighths of a codec frame.

    Speech does not know where frames begin: a long recording of it gives nearly zero.
    """
    _, _, spectrum = stft(audio, SAMPLE_RATE, nperseg=240, noverlap=120, boundary=None, padded=False)
    level = 10 * np.log10((np.abs(spectrum[20:80]) ** 2).sum(0) + 1e-10)
    eighths = FRAME_SAMPLES // 120
    level = level[: len(level) // eighths * eighths].reshape(-1, eighths)
    audible = level.mean(1) > level.mean(1).max() - _AUDIBLE_DB
    profile = np.median(level[audible] - level[audible].mean(1, keepdims=True), axis=0)
    return float(profile.max() - profile.min())


@dataclass(frozen=True)
class SoundQuality:
    """Medians over all voiced or audible frames of a set of utterances."""

    harmonics_to_noise_db: float
    log_spectral_distance_db: float | None
    striping_db: float

    def __str__(self) -> str:
        parts = [f"harmonics to noise {self.harmonics_to_noise_db:.2f} dB", f"striping {self.striping_db:.2f} dB"]
        if self.log_spectral_distance_db is not None:
            parts.insert(1, f"spectral distance {self.log_spectral_distance_db:.2f} dB")
        return ", ".join(parts)


def measure(utterances: list[Audio], references: list[Audio] | None = None) -> SoundQuality:
    """With references (time-aligned, as a codec's output is), frames voiced in the reference are the ones compared."""
    harmonics = [harmonics_to_noise(x) for x in utterances]
    distance = None
    if references is not None:
        voiced = [~np.isnan(harmonics_to_noise(x)) for x in references]
        harmonics = [np.nan_to_num(h, nan=0.0)[v[: len(h)]] for h, v in zip(harmonics, voiced, strict=True)]
        pairs = zip(utterances, references, strict=True)
        distance = float(np.median(np.concatenate([log_spectral_distance(x, y) for x, y in pairs])))
    return SoundQuality(float(np.nanmedian(np.concatenate(harmonics))), distance, striping(np.concatenate(utterances)))


def _autocorrelation(frames: NDArray[np.float64], lags: int) -> NDArray[np.float64]:
    size = 2 * frames.shape[1]
    return np.fft.irfft(np.abs(np.fft.rfft(frames, size)) ** 2, size)[:, :lags]


def _interpolated_maximum(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    best = np.clip(curves.argmax(1), 1, curves.shape[1] - 2)
    left, middle, right = (np.take_along_axis(curves, (best + k)[:, None], 1)[:, 0] for k in (-1, 0, 1))
    curvature = np.where(left - 2 * middle + right < -1e-9, left - 2 * middle + right, -np.inf)
    peak: NDArray[np.float64] = middle - (left - right) ** 2 / (8 * curvature)
    return peak


def _log_spectrogram(audio: Audio) -> NDArray[np.float64]:
    _, _, spectrum = stft(audio, SAMPLE_RATE, nperseg=1024, noverlap=768)
    return 10 * np.log10(np.abs(spectrum[2:342]) ** 2 + 1e-10)
