"""A tiny causal video autoencoder: 2-D convolutions, and blocks that also see what they saw one frame before.

The idea and the layout are TAEHV's (github.com/madebyollin/taehv), whose `taew2_1` weights decode Wan's latents at a
small part of the full decoder's cost; other widths make models of one's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.errors import invalid_value
from streamsynth.models.wan.settings import at_least_one
from streamsynth.models.wan.streaming import LatentLayout, Step, StreamState, check_batch, join, part


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyVaeConfig:
    """The defaults are those of TAEHV for Wan 2.1.

    `decoder_widths` are the channels before each doubling of the size, and after the last; `decoder_blocks` says how
    many memory blocks there are at each of these widths, `growth` how many frames each doubling makes of one. The
    encoder's stages, `encoder_width` wide, undo the doublings in the other order.
    `patch_size` is how much of the size is done by turning pixels into channels. With `first_pictures` of 1 the first
    latent frame is one picture, as Wan's is; otherwise it must be as many as the later ones.
    """

    latent_channels: int = 16
    decoder_widths: tuple[int, ...] = (256, 128, 64, 64)
    decoder_blocks: tuple[int, ...] = (3, 3, 3, 0)
    encoder_width: int = 64
    encoder_blocks: int = 3
    growth: tuple[int, ...] = (1, 2, 2)
    patch_size: int = 1
    first_pictures: int = 1

    @property
    def layout(self) -> LatentLayout:
        return LatentLayout(
            channels=self.latent_channels,
            scale=self.patch_size * 2 ** len(self.growth),
            pictures=prod(self.growth),
            first_pictures=self.first_pictures,
        )

    def __post_init__(self) -> None:
        at_least_one(self, ("latent_channels", "encoder_width", "encoder_blocks", "patch_size"))
        for name, least in (("decoder_widths", 1), ("decoder_blocks", 0)):
            given = getattr(self, name)
            if len(given) != len(self.growth) + 1 or min(given) < least:
                raise invalid_value(name, given, f"one number more than growth has, each at least {least}")
        if not self.growth or min(self.growth) < 1:
            raise invalid_value("growth", self.growth, "numbers of at least 1")
        if self.first_pictures not in (1, prod(self.growth)):
            raise invalid_value("first_pictures", self.first_pictures, f"1 or {prod(self.growth)}")


TAEW_2_2 = TinyVaeConfig(latent_channels=48, patch_size=2)
"""The layout of TAEHV for Wan 2.2 TI2V 5B."""


class MemoryBlock(nn.Module):
    """Frames lie channels last here, (rows, time, height, width, channels): what convolutions are fastest on."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.index = -1
        self.first = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.second, self.third = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        before, channels = step.take(self.index), x.shape[-1]
        # Each frame beside the one before it, written once.
        pairs = x.new_empty(*x.shape[:-1], 2 * channels)
        pairs[..., :channels] = x
        pairs[:, 1:, ..., channels:] = x[:, :-1]
        pairs[:, :1, ..., channels:] = 0.0 if before is None else before
        step.keep(self.index, x[:, -1:].clone())
        hidden = F.relu_(_convolved(self.first, pairs))
        hidden = F.relu_(_convolved(self.second, hidden))
        return F.relu_(_convolved(self.third, hidden).add_(x))


def _convolved(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    made: Tensor = convolution(x.flatten(0, 1).permute(0, 3, 1, 2))
    return made.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])


class GrowStage(nn.Module):
    """Twice the size, and `growth` frames for one."""

    def __init__(self, inputs: int, outputs: int, blocks: int, growth: int) -> None:
        super().__init__()
        self.growth = growth
        self.blocks = nn.ModuleList(MemoryBlock(inputs) for _ in range(blocks))
        self.grow = nn.Linear(inputs, growth * inputs, bias=False)
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        for block in self.blocks:
            x = block(x, step)
        rows, time, height, width, channels = x.shape
        # A product over channels is the same before pixels are repeated as after, at a quarter of the work.
        grown = self.grow(x).unflatten(-1, (self.growth, channels)).permute(0, 1, 4, 2, 3, 5)
        repeated = grown[:, :, :, :, None, :, None].expand(-1, -1, -1, -1, 2, -1, 2, -1)
        larger = repeated.reshape(rows, time * self.growth, 2 * height, 2 * width, channels)
        return _convolved(self.conv, larger)


class ShrinkStage(nn.Module):
    """Half the size, and one frame for `growth`."""

    def __init__(self, channels: int, blocks: int, growth: int) -> None:
        super().__init__()
        self.growth = growth
        self.pool = nn.Linear(growth * channels, channels, bias=False)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, stride=2, bias=False)
        self.blocks = nn.ModuleList(MemoryBlock(channels) for _ in range(blocks))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        together = x.unflatten(1, (-1, self.growth)).permute(0, 1, 3, 4, 2, 5).flatten(4, 5)
        x = _convolved(self.conv, self.pool(together))
        for block in self.blocks:
            x = block(x, step)
        return x


class TinyDecoder(nn.Module):
    def __init__(self, config: TinyVaeConfig) -> None:
        super().__init__()
        widths = config.decoder_widths
        self.conv_in = nn.Conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.stages = nn.ModuleList(
            GrowStage(inputs, outputs, blocks, growth)
            for (inputs, outputs), blocks, growth in zip(
                pairwise(widths), config.decoder_blocks[:-1], config.growth, strict=True
            )
        )
        self.blocks = nn.ModuleList(MemoryBlock(widths[-1]) for _ in range(config.decoder_blocks[-1]))
        self.conv_out = nn.Conv2d(widths[-1], 3 * config.patch_size**2, 3, padding=1)
        self.patch_size = config.patch_size

    def forward(self, latents: Tensor, step: Step) -> Tensor:
        """(rows, channels, time, height, width) to pictures (rows, 3, time, height, width), from 0 to 1 but for errors.

        They are not clipped here: that would hide from training what is wrong beyond it.
        """
        # Latents far out are pulled in: these weights never saw any.
        near = torch.tanh(latents.permute(0, 2, 3, 4, 1).contiguous() / 3.0) * 3.0
        x = F.relu_(_convolved(self.conv_in, near))
        for stage in self.stages:
            x = stage(x, step)
        for block in self.blocks:
            x = block(x, step)
        # Not in place: in training, the last block still needs what it gave.
        pixels = _convolved(self.conv_out, F.relu(x)).permute(0, 1, 4, 2, 3)
        return F.pixel_shuffle(pixels, self.patch_size).transpose(1, 2)


class TinyEncoder(nn.Module):
    def __init__(self, config: TinyVaeConfig) -> None:
        super().__init__()
        width = config.encoder_width
        self.conv_in = nn.Conv2d(3 * config.patch_size**2, width, 3, padding=1)
        blocks = config.encoder_blocks
        self.stages = nn.ModuleList(ShrinkStage(width, blocks, growth) for growth in reversed(config.growth))
        self.conv_out = nn.Conv2d(width, config.latent_channels, 3, padding=1)
        self.patch_size = config.patch_size

    def forward(self, pictures: Tensor, step: Step) -> Tensor:
        """(rows, 3, time, height, width) from 0 to 1 to latents (rows, channels, time, height, width)."""
        pixels = F.pixel_unshuffle(pictures.transpose(1, 2), self.patch_size)
        x = F.relu_(_convolved(self.conv_in, pixels.permute(0, 1, 3, 4, 2).contiguous()))
        for stage in self.stages:
            x = stage(x, step)
        return _convolved(self.conv_out, x).permute(0, 4, 1, 2, 3)


class TinyVae(nn.Module):
    """A `StreamingDecoder` and a `StreamingEncoder`.

    Where the first latent frame is as many pictures as the others, streams go in one batch whatever their positions.
    """

    def __init__(self, config: TinyVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = TinyEncoder(config), TinyDecoder(config)
        self._encoder_layers, self._decoder_layers = _number(self.encoder), _number(self.decoder)
        self._first_differs = config.layout.first_pictures != config.layout.pictures

    @property
    def layout(self) -> LatentLayout:
        return self.config.layout

    def open_decoder(self) -> StreamState:
        return StreamState.opened(self._decoder_layers)

    def open_encoder(self) -> StreamState:
        return StreamState.opened(self._encoder_layers)

    def decode(self, latents: Tensor, states: Sequence[StreamState]) -> Tensor:
        """As `StreamingDecoder.decode`."""
        layout = self.layout
        check_batch(latents, states, channels=layout.channels, multiple=1, first_differs=self._first_differs)
        count, first = latents.shape[2], states[0].units == 0
        if count == 0:
            size = (latents.shape[3] * layout.scale, latents.shape[4] * layout.scale)
            return latents.new_zeros(len(latents), 3, 0, *size)
        step = Step(join(states), first=first)
        pictures = self.decoder(latents, step)
        part(step.memory, states)
        for state in states:
            state.units, state.size = state.units + count, (latents.shape[3], latents.shape[4])
        surplus = layout.pictures - layout.first_pictures if first else 0
        return pictures[:, :, surplus:].clamp(0.0, 1.0).mul_(2.0).sub_(1.0)

    def encode(self, pictures: Tensor, states: Sequence[StreamState]) -> Tensor:
        """As `StreamingEncoder.encode`. A first picture that is a latent frame alone stands for as many like it."""
        layout = self.layout
        check_batch(
            pictures,
            states,
            channels=3,
            multiple=layout.scale,
            period=layout.pictures,
            first_differs=self._first_differs,
        )
        size = (pictures.shape[3], pictures.shape[4])
        taken = states[0].units + pictures.shape[2]
        if self._first_differs and states[0].units == 0 and pictures.shape[2]:
            repeated = pictures[:, :, :1].expand(-1, -1, layout.pictures - layout.first_pictures, -1, -1)
            pictures = torch.cat((repeated, pictures), 2)
        if states[0].waiting is not None:
            waiting = [state.waiting for state in states if state.waiting is not None]
            pictures = torch.cat((torch.cat(waiting), pictures), 2)
        whole = pictures.shape[2] // layout.pictures * layout.pictures
        step = Step(join(states), first=states[0].units == 0)
        latents = pictures.new_zeros(len(pictures), layout.channels, 0, *(each // layout.scale for each in size))
        if whole:
            latents = self.encoder(pictures[:, :, :whole].add(1.0).div_(2.0), step)
        part(step.memory, states)
        for row, state in enumerate(states):
            state.units, state.size = taken, size
            left = pictures[row : row + 1, :, whole:]
            state.waiting = left.clone() if left.shape[2] else None
        return latents

    def decode_clip(self, latents: Tensor) -> Tensor:
        """Whole clips at once."""
        return self.decode(latents, [self.open_decoder() for _ in latents])

    def encode_clip(self, pictures: Tensor) -> Tensor:
        """Whole clips at once; raises INVALID_VALUE for pictures that do not fill their last latent frame."""
        layout = self.layout
        if (pictures.shape[2] - layout.first_pictures) % layout.pictures:
            limit = f"{layout.first_pictures} more than a multiple of {layout.pictures}"
            raise invalid_value("pictures", pictures.shape[2], limit)
        return self.encode(pictures, [self.open_encoder() for _ in pictures])


def _number(model: nn.Module) -> int:
    blocks = [module for module in model.modules() if isinstance(module, MemoryBlock)]
    for index, block in enumerate(blocks):
        block.index = index
    return len(blocks)
