"""Wan's causal autoencoder, offline and as the video comes; follows diffusers' `AutoencoderKLWan`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.errors import invalid_value
from streamsynth.models.wan.streaming import LatentLayout, Step, StreamState, check_batch, join, part
from streamsynth.models.wan.vae_config import VaeConfig
from streamsynth.models.wan.vae_layers import number_layers
from streamsynth.models.wan.vae_stacks import Decoder, Encoder


class WanVae(nn.Module):
    """A `StreamingDecoder` and a `StreamingEncoder`.

    A pass holds at most `frames_per_pass` latent frames: its activations are what takes memory, and large passes are
    what runs fast.
    """

    def __init__(self, config: VaeConfig, *, frames_per_pass: int = 4) -> None:
        super().__init__()
        self.config = config
        self.frames_per_pass = frames_per_pass
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.quant_conv = nn.Conv3d(2 * config.z_dim, 2 * config.z_dim, 1)
        self.post_quant_conv = nn.Conv3d(config.z_dim, config.z_dim, 1)
        self._encoder_layers, self._decoder_layers = number_layers(self.encoder), number_layers(self.decoder)
        self._statistics: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    @property
    def layout(self) -> LatentLayout:
        config = self.config
        return LatentLayout(
            channels=config.z_dim,
            scale=config.scale_factor_spatial,
            pictures=config.scale_factor_temporal,
            first_pictures=1,
        )

    def open_decoder(self) -> StreamState:
        return StreamState.opened(self._decoder_layers)

    def open_encoder(self) -> StreamState:
        return StreamState.opened(self._encoder_layers)

    def decode(self, latents: Tensor, states: Sequence[StreamState]) -> Tensor:
        """As `StreamingDecoder.decode`."""
        check_batch(latents, states, channels=self.config.z_dim, multiple=1)
        mean, std = self._mean_and_std(latents)
        x = torch.addcmul(mean, latents, std).contiguous(memory_format=torch.channels_last_3d)
        memory, made, start = join(states), [], 0
        for count in self._passes(x.shape[2], begun=states[0].units > 0):
            step = Step(memory, first=states[0].units + start == 0)
            made.append(self.decoder(self.post_quant_conv(x[:, :, start : start + count]), step))
            memory, start = step.memory, start + count
        part(memory, states)
        for state in states:
            state.units, state.size = state.units + x.shape[2], (x.shape[3], x.shape[4])
        patch = self.config.patch
        pictures = torch.cat(made, 2) if made else x.new_zeros(len(x), 3 * patch**2, 0, *_enlarged(x, self))
        return _in_pixels(pictures, patch).clamp_(-1.0, 1.0)

    def encode(self, pictures: Tensor, states: Sequence[StreamState]) -> Tensor:
        """As `StreamingEncoder.encode`; the latents are the means of their distributions."""
        per_frame, config = self.config.scale_factor_temporal, self.config
        check_batch(pictures, states, channels=3, multiple=config.scale_factor_spatial, period=per_frame)
        size = (pictures.shape[3], pictures.shape[4])
        taken = states[0].units + pictures.shape[2]
        if states[0].waiting is not None:
            waiting = [state.waiting for state in states if state.waiting is not None]
            pictures = torch.cat((torch.cat(waiting), pictures), 2)
        x = _in_patches(pictures, config.patch).contiguous(memory_format=torch.channels_last_3d)
        memory, made, start = join(states), [], 0
        begun = states[0].units > 0
        # The first picture is a latent frame of its own.
        frames = (pictures.shape[2] + (0 if begun else per_frame - 1)) // per_frame
        for count in self._passes(frames, begun=begun):
            first = not begun and start == 0
            step, span = Step(memory, first=first), 1 if first else count * per_frame
            made.append(self.encoder(x[:, :, start : start + span], step))
            memory, start = step.memory, start + span
        part(memory, states)
        for row, state in enumerate(states):
            state.units, state.size = taken, size
            left = pictures[row : row + 1, :, start:]
            state.waiting = left.clone() if left.shape[2] else None
        scale = config.scale_factor_spatial
        if not made:
            return pictures.new_zeros(len(pictures), config.z_dim, 0, size[0] // scale, size[1] // scale)
        latents = self.quant_conv(torch.cat(made, 2)).chunk(2, 1)[0]
        mean, std = self._mean_and_std(latents)
        return (latents - mean) / std

    def decode_clip(self, latents: Tensor) -> Tensor:
        """Whole clips at once."""
        return self.decode(latents, [self.open_decoder() for _ in latents])

    def encode_clip(self, pictures: Tensor) -> Tensor:
        """Whole clips at once; raises INVALID_VALUE for pictures that do not fill their last latent frame."""
        per_frame = self.config.scale_factor_temporal
        if pictures.shape[2] % per_frame != 1:
            raise invalid_value("pictures", pictures.shape[2], f"1 more than a multiple of {per_frame}")
        return self.encode(pictures, [self.open_encoder() for _ in pictures])

    def _passes(self, frames: int, *, begun: bool) -> list[int]:
        """How many latent frames each pass takes: the first of a stream is alone."""
        counts = [1] if frames and not begun else []
        whole, rest = divmod(frames - sum(counts), self.frames_per_pass)
        return counts + [self.frames_per_pass] * whole + [rest] * bool(rest)

    def _mean_and_std(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of latents, made once for a device: a pass that is being captured cannot bring them there."""
        key = (like.dtype, like.device)
        if key not in self._statistics:
            both = torch.tensor([self.config.latents_mean, self.config.latents_std], dtype=like.dtype).to(like.device)
            mean, std = both.view(2, 1, -1, 1, 1, 1).unbind()
            self._statistics[key] = mean, std
        return self._statistics[key]


def _enlarged(latents: Tensor, vae: WanVae) -> tuple[int, int]:
    scale = vae.config.scale_factor_spatial // vae.config.patch
    return latents.shape[3] * scale, latents.shape[4] * scale


def _in_patches(pictures: Tensor, patch: int) -> Tensor:
    """Wan 2.2 orders a patch's pixels by column, then row."""
    if patch == 1:
        return pictures
    return F.pixel_unshuffle(pictures.transpose(3, 4).transpose(1, 2), patch).transpose(1, 2).transpose(3, 4)


def _in_pixels(patches: Tensor, patch: int) -> Tensor:
    if patch == 1:
        return patches
    return F.pixel_shuffle(patches.transpose(3, 4).transpose(1, 2), patch).transpose(1, 2).transpose(3, 4)
