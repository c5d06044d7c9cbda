"""Turns the network's spectra into samples, a window at a time.

The same sum as `hibari.dsp.synth`: pulses at the pitch, shaped by the harmonic part, plus shaped noise, plus a part
with its own phase, then one inverse STFT. Here frames come first, the state of pitch and overlap is carried from window
to window, and noise is drawn frame by frame: window sizes do not change the samples (4e-8 of full scale, measured).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Complex = npt.NDArray[np.complex64]

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 300

_FFT = 1200
_BINS = _FFT // 2 + 1
_OVERLAP = _FFT // FRAME_SAMPLES
_WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FFT) / _FFT)).astype(np.float32)
_PULSE_WINDOW = _WINDOW / (_FFT / 4)
# The squared windows of four overlapping frames add up to 1.5 everywhere.
_OUTPUT_WINDOW = _WINDOW / np.float32(1.5)
_VOICED_HZ = 40.0
_HIGHEST_HARMONIC_HZ = 11_000.0
_LOUDEST = 7.0
_NEXT_FRAME = (((np.arange(FRAME_SAMPLES) + 0.5) / FRAME_SAMPLES - 0.5) % 1.0).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """What the network predicts for one piece: five parts of shape (601, frames) and the pitch in Hz, all float32.

    `harmonic`, `noise`, `free` are log magnitudes; `turn` (half turns, before tanh) and `phase` (radians) are angles.
    """

    harmonic: Float
    turn: Float
    noise: Float
    free: Float
    phase: Float
    pitch: Float

    def __len__(self) -> int:
        return len(self.pitch)

    def loudness_db(self) -> Float:
        """The level of each frame, about as the samples will have it, in dB of full scale."""
        power = 2 * np.exp(2 * self.noise).sum(0) + np.exp(2 * self.free).sum(0)
        power += np.where(self.pitch > _VOICED_HZ, np.exp(2 * self.harmonic).sum(0), 0)
        level: Float = 10 * np.log10(power * (2 / (0.375 * _FFT * _FFT)) + 1e-20)
        return level


class Renderer:
    """Renders the frames from `first` up to `stop` of a spectrum, each once and in order."""

    def __init__(self, spectrum: Spectrum, first: int, stop: int, noise: np.random.Generator) -> None:
        self._spectrum = spectrum
        self._noise = noise
        self._next = first
        self._stop = stop
        self._analysed = max(0, first - 1)
        self._overlap = np.zeros((_OVERLAP - 1, FRAME_SAMPLES), np.float32)
        self._pulsed = self._analysed - 2
        self._turns = 0.0

    @property
    def left(self) -> int:
        """Frames still to come."""
        return self._stop - self._next

    def render(self, frames: int) -> Float:
        """The next `frames` frames, or as many as are left: float32 of shape (frames * 300,)."""
        stop = min(self._next + frames, self._stop)
        analysed_to = stop + 2  # The last sample of frame n lies under the windows of n-1 .. n+2.
        blocks = np.zeros((analysed_to - self._analysed + _OVERLAP - 1, FRAME_SAMPLES), np.float32)
        blocks[: _OVERLAP - 1] = self._overlap
        real = min(analysed_to, len(self._spectrum)) - self._analysed
        if real > 0:
            windows = self._windows(self._analysed, self._analysed + real).reshape(real, _OVERLAP, FRAME_SAMPLES)
            for shift in range(_OVERLAP):
                blocks[shift : shift + real] += windows[:, shift]
        begin = self._next - (self._analysed - 2)
        samples = blocks[begin : begin + stop - self._next].reshape(-1)
        self._overlap = blocks[-(_OVERLAP - 1) :].copy()
        self._analysed, self._next = analysed_to, stop
        return samples

    def _windows(self, first: int, stop: int) -> Float:
        """The windowed signal of frames first..stop: shape (stop - first, 1200)."""
        part = self._spectrum
        spectrum = self._pulse_spectrum(first, stop)
        angle = np.tanh(part.turn[:, first:stop].T)
        angle *= np.float32(np.pi)
        spectrum *= _polar(part.harmonic[:, first:stop], angle)
        noise = self._noise.standard_normal((stop - first, 2 * _BINS), dtype=np.float32).view(np.complex64)
        noise *= _magnitude(part.noise[:, first:stop])
        spectrum += noise
        spectrum += _polar(part.free[:, first:stop], part.phase[:, first:stop].T)
        frames: Float = np.fft.irfft(spectrum, _FFT, axis=1).astype(np.float32, copy=False)
        frames *= _OUTPUT_WINDOW
        return frames

    def _pulse_spectrum(self, first: int, stop: int) -> Complex:
        """The STFT of the pulse train at frames first..stop: shape (stop - first, 601)."""
        pulses = self._pulses(first - 2, stop + 2)
        windows = np.lib.stride_tricks.sliding_window_view(pulses, _FFT)[::FRAME_SAMPLES][: stop - first]
        return np.fft.rfft(windows * _PULSE_WINDOW, axis=1).astype(np.complex64, copy=False)

    def _pulses(self, first: int, stop: int) -> Float:
        """A pulse train at the pitch: every harmonic below 11 kHz at amplitude 1, nothing where there is no voice.

        Covers frames first..stop; those outside the spectrum are silent. Calls follow one another as windows do: each
        starts four frames before the end of the last one.
        """
        inside = range(max(first, 0), min(stop, len(self._spectrum)))
        hertz = self._hertz(inside)
        turns = np.cumsum(np.maximum(hertz, _VOICED_HZ), dtype=np.float64) / SAMPLE_RATE + self._turns
        # The next window starts two frames before the first frame that this one did not analyse.
        resume = (stop - 4 - inside.start) * FRAME_SAMPLES
        if 0 < resume <= len(turns):
            self._turns = float(turns[resume - 1] % 1.0)
        pulses = np.zeros((stop - first) * FRAME_SAMPLES, np.float32)
        begin = (inside.start - first) * FRAME_SAMPLES
        pulses[begin : begin + len(hertz)] = _pulse_train(hertz, turns)
        return pulses

    def _hertz(self, frames: range) -> Float:
        """The pitch at each sample, linear between frame centres."""
        pitch = self._spectrum.pitch
        around = np.clip(np.arange(frames.start - 1, frames.stop + 1), 0, len(pitch) - 1)
        near = pitch[around]
        half = FRAME_SAMPLES // 2
        hertz = np.empty((len(frames), FRAME_SAMPLES), np.float32)
        weight, rest = _NEXT_FRAME, 1 - _NEXT_FRAME
        hertz[:, :half] = near[:-2, None] * rest[:half] + near[1:-1, None] * weight[:half]
        hertz[:, half:] = near[1:-1, None] * rest[half:] + near[2:, None] * weight[half:]
        return hertz.reshape(-1)


def _pulse_train(hertz: Float, turns: npt.NDArray[np.float64]) -> Float:
    """sum of cos(h t) for h up to H, in closed form: sin((H + 1/2) t) / (2 sin(t / 2)) - 1/2."""
    angle = ((turns % 1.0) * (2 * np.pi)).astype(np.float32)
    order = np.floor(np.float32(_HIGHEST_HARMONIC_HZ) / np.maximum(hertz, np.float32(_VOICED_HZ))) + np.float32(0.5)
    divisor = 2 * np.sin(angle * np.float32(0.5))
    at_pole = np.abs(divisor) <= 2e-3
    divisor[at_pole] = 1
    train: Float = np.sin(order * angle) / divisor
    train[at_pole] = order[at_pole]
    train -= np.float32(0.5)
    train[hertz <= _VOICED_HZ] = 0
    return train


def _magnitude(log_magnitude: Float) -> Float:
    """exp of a (bins, frames) part, as (frames, bins)."""
    return np.exp(np.minimum(log_magnitude.T, np.float32(_LOUDEST)), order="C")


def _polar(log_magnitude: Float, angle: Float) -> Complex:
    spectrum = np.empty(angle.shape, np.complex64)
    np.cos(angle, out=spectrum.real)
    np.sin(angle, out=spectrum.imag)
    spectrum *= _magnitude(log_magnitude)
    return spectrum
