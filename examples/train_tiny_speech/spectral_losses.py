"""Distances between decoded and real speech that do not care about phase."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_tiny_speech.frames import SAMPLE_RATE

_MEL_SCALES = ((32, 5), (64, 10), (128, 20), (256, 40), (512, 80), (1024, 160), (2048, 320))
_BANDS_HZ = (60, 1000, 2000, 4000, 8000)
_PITCH_LAGS = slice(SAMPLE_RATE // 450, SAMPLE_RATE // 90)


def mel_filters(size: int, bands: int) -> Tensor:
    """Triangles [bands, size // 2 + 1], equally spaced on the mel scale; one narrower than a bin becomes that bin."""
    top = 2595 * torch.log10(torch.tensor(1 + SAMPLE_RATE / 2 / 700))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2) / 2595) - 1)
    bins = torch.linspace(0, SAMPLE_RATE / 2, size // 2 + 1)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    filters = torch.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)).clamp(min=0)
    empty = filters.sum(1) == 0
    nearest = (bins - centre).abs().argmin(1)
    filters[empty, nearest[empty]] = 1
    return filters


class MelDistance(nn.Module):
    """Mean absolute difference of log mel spectra, summed over seven window lengths (as in DAC)."""

    def __init__(self) -> None:
        super().__init__()
        for size, bands in _MEL_SCALES:
            self.register_buffer(f"filters{size}", mel_filters(size, bands), persistent=False)
            self.register_buffer(f"window{size}", torch.hann_window(size), persistent=False)

    def forward(self, decoded: Tensor, real: Tensor) -> Tensor:
        terms = [(self._log_mel(decoded, s) - self._log_mel(real, s)).abs().mean() for s, _ in _MEL_SCALES]
        return torch.stack(terms).sum()

    def _log_mel(self, audio: Tensor, size: int) -> Tensor:
        window, filters = getattr(self, f"window{size}"), getattr(self, f"filters{size}")
        spectrum = torch.stft(audio, size, size // 4, window=window, return_complex=True)
        magnitude = torch.view_as_real(spectrum).square().sum(-1).add(1e-9).sqrt()
        return (filters @ magnitude).clamp(min=1e-5).log10()


class PeriodicityDistance(nn.Module):
    """Difference of normalised autocorrelations at pitch lags, band by band, where the real speech is periodic.

    What makes a voice hoarse is that its upper harmonics lose their period; a mel spectrum hardly shows that.
    """

    window: Tensor
    bands: Tensor

    def __init__(self, size: int = 960) -> None:
        super().__init__()
        self._size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        bins = torch.linspace(0, SAMPLE_RATE / 2, size + 1)
        edges = torch.tensor(_BANDS_HZ)
        bands = (bins >= edges[:-1, None]) & (bins < edges[1:, None])
        self.register_buffer("bands", bands.float(), persistent=False)

    def forward(self, decoded: Tensor, real: Tensor) -> Tensor:
        ours, theirs = self._correlation(decoded), self._correlation(real)
        periodic = theirs.amax(-1, keepdim=True).clamp(min=0).square()
        return ((ours - theirs).abs() * periodic).mean() / periodic.mean().clamp(min=1e-3)

    def _correlation(self, audio: Tensor) -> Tensor:
        frames = audio.unfold(-1, self._size, self._size // 4) * self.window
        power = torch.view_as_real(torch.fft.rfft(F.pad(frames, (0, self._size)))).square().sum(-1)
        correlation = torch.fft.irfft(power[..., None, :] * self.bands)
        return correlation[..., _PITCH_LAGS] / (correlation[..., :1] + 1e-5)
