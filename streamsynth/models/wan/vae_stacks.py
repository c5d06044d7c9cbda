"""The encoder and the decoder of Wan 2.1's autoencoder, and of Wan 2.2's, which has shortcuts around the resampling."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.models.wan.streaming import Step
from streamsynth.models.wan.vae_config import VaeConfig
from streamsynth.models.wan.vae_layers import (
    CausalConv,
    ChannelNorm,
    Downsample,
    MiddleBlock,
    ResidualBlock,
    Upsample,
)


class DownBlock(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, count: int, down: Downsample | None, shortcut: AveragedShortcut | None
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResidualBlock(inputs if not i else outputs, outputs) for i in range(count))
        self.downsampler = down
        self.shortcut = shortcut

    def forward(self, x: Tensor, step: Step) -> Tensor:
        around = None if self.shortcut is None else self.shortcut(x)
        for block in self.resnets:
            x = block(x, step)
        if self.downsampler is not None:
            x = self.downsampler(x, step)
        return x if around is None else x + around


class UpBlock(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, count: int, up: Upsample | None, shortcut: RepeatedShortcut | None
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResidualBlock(inputs if not i else outputs, outputs) for i in range(count))
        self.upsampler = up
        self.shortcut = shortcut

    def forward(self, x: Tensor, step: Step) -> Tensor:
        around = None if self.shortcut is None else self.shortcut(x, step)
        for block in self.resnets:
            x = block(x, step)
        if self.upsampler is not None:
            x = self.upsampler(x, step)
        return x if around is None else x + around


class AveragedShortcut(nn.Module):
    """What goes around a block that shrinks: the pixels it merges become channels, averaged to as many as it makes."""

    def __init__(self, outputs: int, *, time: int, space: int) -> None:
        super().__init__()
        self.outputs, self.time, self.space = outputs, time, space

    def forward(self, x: Tensor) -> Tensor:
        # A stream's first frame is alone where later ones come in pairs: it is averaged with zeros.
        x = F.pad(x, (0, 0, 0, 0, -x.shape[2] % self.time, 0))
        split = x.unflatten(4, (-1, self.space)).unflatten(3, (-1, self.space)).unflatten(2, (-1, self.time))
        merged = split.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(1, 4)
        return merged.unflatten(1, (self.outputs, -1)).mean(2)


class RepeatedShortcut(nn.Module):
    """What goes around a block that enlarges: channels become pixels, repeated where there are too few."""

    def __init__(self, inputs: int, outputs: int, *, time: int) -> None:
        super().__init__()
        self.outputs, self.time = outputs, time
        self.repeats = outputs * 4 * time // inputs

    def forward(self, x: Tensor, step: Step) -> Tensor:
        split = x.repeat_interleave(self.repeats, 1).unflatten(1, (self.outputs, self.time, 2, 2))
        pixels = split.permute(0, 1, 5, 2, 6, 3, 7, 4).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        return pixels[:, :, self.time - 1 :] if step.first else pixels


class Encoder(nn.Module):
    """Pictures to the mean and log variance of latents; a stream's first picture comes alone, later ones in fours."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        sizes = [config.base_dim * factor for factor in (1, *config.dim_mult)]
        self.conv_in = CausalConv(config.in_channels, sizes[0], (3, 3, 3))
        self.down_blocks = nn.ModuleList()
        for index, (inputs, outputs) in enumerate(pairwise(sizes)):
            last = index == len(config.dim_mult) - 1
            in_time = not last and config.temperal_downsample[index]
            down = None if last else Downsample(outputs, in_time=in_time)
            shortcut = None
            if config.is_residual:
                shortcut = AveragedShortcut(outputs, time=1 + in_time, space=1 if last else 2)
            self.down_blocks.append(DownBlock(inputs, outputs, config.num_res_blocks, down, shortcut))
        self.mid_block = MiddleBlock(sizes[-1])
        self.norm_out = ChannelNorm(sizes[-1])
        self.conv_out = CausalConv(sizes[-1], 2 * config.z_dim, (3, 3, 3))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.conv_in(x, step)
        for block in self.down_blocks:
            x = block(x, step)
        x = self.mid_block(x, step)
        return self.conv_out(F.silu(self.norm_out(x)), step)


class Decoder(nn.Module):
    """Latents to pictures; a stream's first latent frame comes alone."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        base = config.decoder_base_dim or config.base_dim
        sizes = [base * factor for factor in (config.dim_mult[-1], *reversed(config.dim_mult))]
        self.conv_in = CausalConv(config.z_dim, sizes[0], (3, 3, 3))
        self.mid_block = MiddleBlock(sizes[0])
        self.up_blocks = nn.ModuleList()
        for index, (before, outputs) in enumerate(pairwise(sizes)):
            last = index == len(config.dim_mult) - 1
            in_time = not last and config.temperal_downsample[-1 - index]
            # Wan 2.1 halves the channels where it enlarges, Wan 2.2 in the block after.
            inputs = before if config.is_residual or index == 0 else before // 2
            made = outputs if config.is_residual else outputs // 2
            up = None if last else Upsample(outputs, made, in_time=in_time)
            shortcut = None
            if config.is_residual and not last:
                shortcut = RepeatedShortcut(inputs, outputs, time=1 + in_time)
            self.up_blocks.append(UpBlock(inputs, outputs, config.num_res_blocks + 1, up, shortcut))
        self.norm_out = ChannelNorm(sizes[-1])
        self.conv_out = CausalConv(sizes[-1], config.out_channels, (3, 3, 3))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.mid_block(self.conv_in(x, step), step)
        for block in self.up_blocks:
            x = block(x, step)
        return self.conv_out(F.silu(self.norm_out(x)), step)
