"""Causal convolutions over (rows, channels, time, height, width), and the blocks made of them.

Tensors lie channels last: that is what norms reduce over, and what convolutions are fastest on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.models.wan.streaming import Step

_SMALLEST_SQUARE = 1e-24
"""Under the root of a norm: the reference divides by a length of at least 1e-12."""


class CausalConv(nn.Module):
    """Sees the present and the past: with a kernel of 3 in time the two frames before, at a stream's start zeros."""

    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int, int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, *kernel))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.index = -1
        self.past = kernel[0] - 1
        self.padding = (0, kernel[1] // 2, kernel[2] // 2)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        if self.past:
            before = step.take(self.index)
            x = torch.cat((self.nothing(x) if before is None else before, x), 2)
            step.keep(self.index, x[:, :, -self.past :].clone())
        return F.conv3d(x, self.weight, self.bias, padding=self.padding)

    def nothing(self, x: Tensor) -> Tensor:
        """What is before a stream's start."""
        rows, channels, _, height, width = x.shape
        shape = (rows, channels, self.past, height, width)
        # Channels last like the rest: joined with another order, everything after would lose it.
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d).zero_()


class ChannelNorm(nn.Module):
    """Root mean square over the channels of a pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.movedim(1, -1), self.gamma.shape, self.gamma, _SMALLEST_SQUARE).movedim(-1, 1)


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = ChannelNorm(inputs), ChannelNorm(outputs)
        self.conv1, self.conv2 = CausalConv(inputs, outputs, (3, 3, 3)), CausalConv(outputs, outputs, (3, 3, 3))
        self.conv_shortcut = CausalConv(inputs, outputs, (1, 1, 1)) if inputs != outputs else None

    def forward(self, x: Tensor, step: Step) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)), step)
        hidden = self.conv2(F.silu(self.norm2(hidden)), step)
        return hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x, step))


class FrameAttention(nn.Module):
    """A pixel attends to all pixels of its frame; one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.to_qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        rows, channels, frames, height, width = x.shape
        pixels = self.norm(x).permute(0, 2, 3, 4, 1).reshape(rows * frames, 1, height * width, channels)
        q, k, v = self.to_qkv(pixels).chunk(3, -1)
        out = self.proj(F.scaled_dot_product_attention(q, k, v))
        return x + out.view(rows, frames, height, width, channels).permute(0, 4, 1, 2, 3)


class MiddleBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.attention = ResidualBlock(channels, channels), FrameAttention(channels)
        self.second = ResidualBlock(channels, channels)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.second(self.attention(self.first(x, step)), step)


class Upsample(nn.Module):
    """Twice the size; with `in_time` also two frames for one, but for a stream's first frame, which stays one."""

    def __init__(self, inputs: int, outputs: int, *, in_time: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_conv = CausalConv(inputs, 2 * inputs, (3, 1, 1)) if in_time else None

    def forward(self, x: Tensor, step: Step) -> Tensor:
        if self.time_conv is not None and step.first:
            # The reference does not show the first frame to this convolution: the second sees zeros before it.
            step.keep(self.time_conv.index, self.time_conv.nothing(x))
        elif self.time_conv is not None:
            pair = self.time_conv(x, step).movedim(1, -1).unflatten(-1, (2, -1))
            x = pair.permute(0, 1, 4, 2, 3, 5).flatten(1, 2).movedim(-1, 1)
        return _each_frame(x, self._enlarge)

    def _enlarge(self, frames: Tensor) -> Tensor:
        return self.conv(F.interpolate(frames, scale_factor=2.0, mode="nearest"))


class Downsample(nn.Module):
    """Half the size; with `in_time` also one frame for two, but for a stream's first frame, which stays one."""

    def __init__(self, channels: int, *, in_time: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1)) if in_time else None
        self.index = -1

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = _each_frame(x, self._reduce)
        if self.time_conv is None:
            return x
        before = step.take(self.index)
        step.keep(self.index, x[:, :, -1:].clone())
        return x if before is None else self.time_conv(torch.cat((before, x), 2))

    def _reduce(self, frames: Tensor) -> Tensor:
        return self.conv(F.pad(frames, (0, 1, 0, 1)))


def _each_frame(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of (frames, channels, height, width)."""
    made = function(x.transpose(1, 2).flatten(0, 1))
    return made.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


def number_layers(model: nn.Module) -> int:
    """Give every layer that remembers its place in a stream's memory; returns how many there are."""
    count = 0
    for module in model.modules():
        if (isinstance(module, CausalConv) and module.past) or (
            isinstance(module, Downsample) and module.time_conv is not None
        ):
            module.index = count
            count += 1
    return count
