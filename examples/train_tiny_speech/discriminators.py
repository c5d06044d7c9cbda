"""Judges of real and decoded speech: several periods (HiFi-GAN) and several complex spectrograms (EnCodec, DAC)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

PERIODS = (2, 3, 5, 7, 11)
SPECTROGRAM_SIZES = (2048, 1024, 512, 256)


class Verdict(NamedTuple):
    """Scores (1 is real) and the activations of every layer before them."""

    scores: Tensor
    features: list[Tensor]


class _Convolutions(nn.Module):
    def __init__(self, layers: Sequence[nn.Module], last: nn.Module) -> None:
        super().__init__()
        self._layers = nn.ModuleList(weight_norm(layer) for layer in layers)
        self._last = weight_norm(last)

    def forward(self, image: Tensor) -> Verdict:
        features = []
        for layer in self._layers:
            image = F.leaky_relu(layer(image), 0.1).contiguous(memory_format=torch.channels_last)
            features.append(image)
        return Verdict(self._last(image), features)


class PeriodDiscriminator(nn.Module):
    def __init__(self, period: int, channels: Sequence[int] = (32, 64, 128, 256, 256)) -> None:
        super().__init__()
        self._period = period
        inputs = (1, *channels)
        layers = [
            nn.Conv2d(i, o, (5, 1), (3 if o != i else 1, 1), padding=(2, 0))
            for i, o in zip(inputs, channels, strict=False)
        ]
        self._judge = _Convolutions(layers, nn.Conv2d(channels[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, audio: Tensor) -> Verdict:
        audio = F.pad(audio, (0, -audio.shape[-1] % self._period))
        return self._judge(audio.view(len(audio), 1, -1, self._period))


class SpectrogramDiscriminator(nn.Module):
    """Sees real and imaginary parts; strides along frequency, dilates along time."""

    window: Tensor

    def __init__(self, size: int, channels: int = 32) -> None:
        super().__init__()
        self._size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        layers = [nn.Conv2d(2, channels, (3, 9), padding=(1, 4))]
        layers += [
            nn.Conv2d(channels, channels, (3, 9), (1, 2), padding=(dilation, 4), dilation=(dilation, 1))
            for dilation in (1, 2, 4)
        ]
        layers.append(nn.Conv2d(channels, channels, (3, 3), padding=(1, 1)))
        self._judge = _Convolutions(layers, nn.Conv2d(channels, 1, (3, 3), padding=(1, 1)))

    def forward(self, audio: Tensor) -> Verdict:
        with torch.autocast(audio.device.type, enabled=False):
            hop = self._size // 4
            spectrum = torch.stft(audio.float(), self._size, hop, window=self.window, return_complex=True)
            image = torch.view_as_real(spectrum / hop**0.5).permute(0, 3, 2, 1)
        return self._judge(image.contiguous(memory_format=torch.channels_last))


class Discriminators(nn.Module):
    """All of them; `width` scales the channels."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        channels = [int(c * width) for c in (32, 64, 128, 256, 256)]
        judges: list[nn.Module] = [PeriodDiscriminator(period, channels) for period in PERIODS]
        judges += [SpectrogramDiscriminator(size, channels[0]) for size in SPECTROGRAM_SIZES]
        self._judges = nn.ModuleList(judges)

    def forward(self, audio: Tensor) -> list[Verdict]:
        return [judge(audio) for judge in self._judges]


def judging_loss(real: list[Verdict], decoded: list[Verdict]) -> Tensor:
    """Least squares: real speech should score 1, decoded speech 0."""
    terms = [
        (1 - r.scores.float()).square().mean() + d.scores.float().square().mean()
        for r, d in zip(real, decoded, strict=True)
    ]
    return torch.stack(terms).mean()


def deception_loss(decoded: list[Verdict]) -> Tensor:
    return torch.stack([(1 - d.scores.float()).square().mean() for d in decoded]).mean()


def feature_distance(real: list[Verdict], decoded: list[Verdict]) -> Tensor:
    """Mean absolute difference of activations, each layer relative to its size on real speech."""
    terms = []
    for r, d in zip(real, decoded, strict=True):
        for theirs, ours in zip(r.features, d.features, strict=True):
            distance = (ours - theirs.detach()).abs().mean(dtype=torch.float32)
            terms.append(distance / (theirs.detach().abs().mean(dtype=torch.float32) + 1e-4))
    return torch.stack(terms).mean()
