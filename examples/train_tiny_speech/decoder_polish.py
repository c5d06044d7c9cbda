"""One training step of the codec's decoder, with everything before it frozen: codes, and a talker, stay valid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import MimiModel

from train_tiny_speech.codec import DECODER_PARTS, CodeEmbedding, decode_embeddings
from train_tiny_speech.discriminators import Discriminators, deception_loss, feature_distance, judging_loss
from train_tiny_speech.spectral_losses import MelDistance, PeriodicityDistance
from train_tiny_speech.speech_bank import SpeechBank, Window, judged_part


@dataclass(frozen=True)
class PolishSettings:
    batch: int = 20
    window: Window = field(default_factory=Window)
    learning_rate: float = 3e-4
    mel_weight: float = 8.0
    periodicity_weight: float = 10.0
    deception_weight: float = 6.0
    feature_weight: float = 16.0
    warmup_steps: int = 300
    average_decay: float = 0.999


@dataclass(frozen=True)
class PolishLosses:
    """Device scalars of the last step; reading one waits for the device."""

    mel: Tensor
    periodicity: Tensor
    judging: Tensor
    deception: Tensor
    features: Tensor

    def __str__(self) -> str:
        return " ".join(f"{name} {float(value):.3f}" for name, value in vars(self).items())


class DecoderPolish:
    """Trains `codec`'s decoder in place and keeps a running average of its weights."""

    def __init__(
        self, codec: MimiModel, discriminators: Discriminators, bank: SpeechBank, settings: PolishSettings
    ) -> None:
        device = codec.device
        self._codec, self._bank, self._settings = codec, bank, settings
        self._discriminators = discriminators.to(device, memory_format=torch.channels_last)
        self._embedding = CodeEmbedding(codec)
        self._mel, self._periodicity = MelDistance().to(device), PeriodicityDistance().to(device)
        self._weights = _unfreeze_decoder(codec)
        self._average = [w.detach().clone() for w in self._weights]
        self._draw = torch.zeros(2, settings.batch, dtype=torch.int64, device=device)
        self._rate = torch.tensor(0.0, device=device)
        self._adversarial = torch.tensor(0.0, device=device)
        self._optimizers = [self._adamw(self._weights), self._adamw(list(discriminators.parameters()))]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._steps = 0

    def step(self, draw: Tensor, progress: float) -> PolishLosses:
        """`draw` is from `SpeechBank.draw`; `progress`, 0 to 1 over the training, sets the learning rate."""
        warm = min(1.0, (self._steps + 1) / self._settings.warmup_steps)
        self._rate.fill_(
            warm * self._settings.learning_rate * (0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, progress))))
        )
        self._adversarial.fill_(warm)
        self._draw.copy_(draw, non_blocking=True)
        if self._graph is None:
            self._losses = self._update()
        else:
            self._graph.replay()
        self._steps += 1
        return self._losses

    def capture(self) -> None:
        """From now on a step is one launch of a CUDA graph. A few plain steps must have settled all allocations."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._losses = self._update()
        self._graph = graph

    def averaged(self) -> MimiModel:
        """The codec with the averaged weights; `restore` puts the trained ones back."""
        self._swap()
        return self._codec

    def restore(self) -> None:
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, average in zip(self._weights, self._average, strict=True):
            held = weight.clone()
            weight.copy_(average)
            average.copy_(held)

    def _update(self) -> PolishLosses:
        settings, device = self._settings, self._draw.device.type
        codes, real = self._bank.window(self._draw, settings.window)
        mixed = torch.autocast(device, torch.bfloat16, enabled=device == "cuda", cache_enabled=False)
        with mixed:
            decoded = judged_part(decode_embeddings(self._codec, self._embedding(codes)), self._draw, settings.window)
            heard = decoded.detach().requires_grad_()
            on_real, on_decoded = self._discriminators(real), self._discriminators(heard)
        losses = PolishLosses(
            self._mel(decoded, real),
            self._periodicity(decoded, real),
            judging_loss(on_real, on_decoded),
            deception_loss(on_decoded),
            feature_distance(on_real, on_decoded),
        )
        # One pass of the judges serves both players: its gradient by the audio teaches the decoder,
        # its gradient by the weights the judges.
        judges = list(self._discriminators.parameters())
        persuasion = settings.deception_weight * losses.deception + settings.feature_weight * losses.features
        (by_audio,) = torch.autograd.grad(persuasion, heard, retain_graph=True)
        by_judges = torch.autograd.grad(losses.judging, judges)
        likeness = settings.mel_weight * losses.mel + settings.periodicity_weight * losses.periodicity
        by_decoder = torch.autograd.grad(likeness + (decoded * (self._adversarial * by_audio)).sum(), self._weights)
        self._descend(self._weights, by_decoder, self._optimizers[0], 20.0)
        self._descend(judges, by_judges, self._optimizers[1], 10.0)
        with torch.no_grad():
            torch._foreach_lerp_(self._average, self._weights, 1 - settings.average_decay)
        return PolishLosses(**{name: value.detach() for name, value in vars(losses).items()})

    @staticmethod
    def _descend(
        weights: list[Tensor], gradients: tuple[Tensor, ...], optimizer: torch.optim.Optimizer, limit: float
    ) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = torch.empty_like(weight) if weight.grad is None else weight.grad
            weight.grad.copy_(gradient)  # the fused optimizer wants the strides of the weight
        torch.nn.utils.clip_grad_norm_(weights, limit)
        optimizer.step()

    def _adamw(self, weights: list[Tensor]) -> torch.optim.AdamW:
        on_cuda = self._rate.is_cuda
        rate = self._rate if on_cuda else torch.tensor(self._settings.learning_rate)
        return torch.optim.AdamW(weights, rate, betas=(0.8, 0.99), weight_decay=0.01, fused=True, capturable=on_cuda)


def _unfreeze_decoder(codec: MimiModel) -> list[Tensor]:
    codec.requires_grad_(False)
    weights = []
    for part in DECODER_PARTS:
        module = codec.get_submodule(part)
        module.requires_grad_(True)
        weights += list(module.parameters())
    return weights
