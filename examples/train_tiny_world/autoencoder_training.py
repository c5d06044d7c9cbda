"""One training step of the autoencoder: pictures to near-normal latents, and back to the same pictures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.models.wan.tiny_vae import TinyVae
from train_tiny_world.focus import CELL
from train_tiny_world.networks import decode_latents, encode_pictures
from train_tiny_world.picture_pool import Pictures


@dataclass(frozen=True)
class AutoencoderSettings:
    learning_rate: float = 1e-3
    edges: float = 1.0
    squares: float = 4.0
    """What rare bright pixels weigh, such as snow: to the median of a place they are nothing."""
    focus: float = 1.5
    """How much more a difference counts where things are: their outlines say what they are."""
    spread: float = 0.02
    grain: float = 0.12
    """The most noise that latents get before they are decoded: a sampler's are never quite right."""
    warmup_steps: int = 200
    average_decay: float = 0.998


def picture_loss(made: Tensor, wished: Pictures, settings: AutoencoderSettings) -> Tensor:
    """L1 at three sizes, squares, and L1 of differences between neighbours in space and in time."""
    cells = wished.focus.repeat_interleave(CELL, -1).repeat_interleave(CELL, -2)
    difference = (made - wished.pixels) * (1 + settings.focus * cells)[:, :, None]
    loss = difference.abs().mean() + settings.squares * difference.square().mean()
    loss = loss + settings.edges * sum(torch.diff(difference, dim=dim).abs().mean() for dim in (-1, -2, 1))
    flat = difference.flatten(0, 1)
    return loss + sum(0.5 * F.avg_pool2d(flat, size).abs().mean() for size in (4, 16))


def spread_loss(latents: Tensor) -> Tensor:
    """The divergence of each channel from a unit normal, as if it were normal itself."""
    channels = latents.float().transpose(1, 2).flatten(2).transpose(0, 1).flatten(1)
    mean, variance = channels.mean(1), channels.var(1)
    return 0.5 * (mean**2 + variance - 1 - variance.clamp_min(1e-4).log()).mean()


class AutoencoderTraining:
    """Trains `vae` in place and keeps a running average of its weights."""

    def __init__(self, vae: TinyVae, settings: AutoencoderSettings) -> None:
        self._vae, self._settings = vae, settings
        self.weights = list(vae.parameters())
        self.average = [weight.detach().clone() for weight in self.weights]
        on_gpu = self.weights[0].is_cuda
        self.optimizer = torch.optim.AdamW(
            self.weights, settings.learning_rate, (0.9, 0.95), weight_decay=1e-4, fused=on_gpu
        )
        self.steps = 0

    def step(self, pictures: Pictures, progress: float) -> dict[str, Tensor]:
        """`progress` runs from 0 to 1 and sets the learning rate."""
        settings = self._settings
        rate = settings.learning_rate * min(1.0, (self.steps + 1) / settings.warmup_steps) * max(0.02, 1 - progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        pixels = pictures.pixels
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
            latents = encode_pictures(self._vae, pixels)
            grain = torch.rand(len(latents), 1, 1, 1, 1, device=latents.device) * settings.grain
            made = decode_latents(self._vae, latents + torch.randn_like(latents) * grain)
        fidelity = picture_loss(made.float(), pictures, settings)
        spread = spread_loss(latents)
        self.optimizer.zero_grad(set_to_none=True)
        (fidelity + settings.spread * spread).backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.steps += 1
        decay = min(settings.average_decay, self.steps / (self.steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, [weight.detach() for weight in self.weights], 1 - decay)
        return {"fidelity": fidelity.detach(), "spread": spread.detach()}


@torch.no_grad()
def reconstruct(vae: TinyVae, pictures: Tensor) -> Tensor:
    """Pictures that went through, from 0 to 1."""
    return decode_latents(vae, encode_pictures(vae, pictures)).clamp(0, 1).float()


@torch.no_grad()
def peak_signal_to_noise(vae: TinyVae, pictures: Tensor) -> float:
    """In decibels, of pictures that went through."""
    return float(-10 * torch.log10((reconstruct(vae, pictures) - pictures).square().mean()))


@torch.no_grad()
def normalise_latents(vae: TinyVae, pictures: Tensor) -> None:
    """Fold what spread of each channel is too much or too little into the convolutions beside the latents.

    The decoder's bound of 3 makes this exact only where latents are small: some training must come after.
    """
    latents = encode_pictures(vae, pictures).transpose(1, 2).transpose(0, 1).flatten(1).float()
    deviation = latents.std(1)
    out, into = vae.encoder.conv_out, vae.decoder.conv_in
    out.weight.div_(deviation[:, None, None, None])
    out.bias.div_(deviation)
    into.weight.mul_(deviation[None, :, None, None])
