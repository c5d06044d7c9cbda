"""Audio to codes, frame by frame, for many streams in one batch."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from streamsynth.errors import invalid_value
from streamsynth.models.mimi.config import MimiConfig
from streamsynth.models.mimi.convolution import CausalConv, number_convolutions, seanet
from streamsynth.models.mimi.layout import downsampling, encoder_layers
from streamsynth.models.mimi.quantizer import Quantizer
from streamsynth.models.mimi.streaming import StreamState
from streamsynth.models.mimi.transformer import Transformer, attention_shape
from streamsynth.models.mimi.weights import ENCODING, Tensors, read_config, read_tensors

_OFFLINE_FRAMES = 32


class MimiEncoderState(StreamState):
    """The streams of one `MimiEncoder`."""


class MimiEncoder(nn.Module):
    """The encoding half of Mimi: what transformers' `MimiModel.encode` gives, in steps of any length."""

    def __init__(self, config: MimiConfig, tensors: Tensors, *, dtype: torch.dtype = torch.float32) -> None:
        """`tensors` are float32 under their Hugging Face names. Codes are searched in float32 whatever `dtype` is."""
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.layers = seanet(encoder_layers(config), tensors, per_frame=config.frame_samples).to(dtype)
        self.transformer = Transformer(config, tensors, "encoder_transformer").to(dtype)
        self.downsample = CausalConv(downsampling(config), tensors, 2).to(dtype)
        self.quantizer = Quantizer(config, tensors)
        self._convolutions = number_convolutions(self)

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Self:
        """As `MimiDecoder.load`."""
        config, prefix = read_config(folder)
        return cls(config, read_tensors(folder, config, ENCODING, prefix=prefix), dtype=dtype).to(device)

    @property
    def device(self) -> torch.device:
        return self.downsample.weight.device

    def open_state(self, slots: int, *, max_frames: int = 8) -> MimiEncoderState:
        """State for `slots` streams, on the encoder's device; a step may hold `max_frames` frames."""
        attention = attention_shape(self.config, self.device)
        return MimiEncoderState(self._convolutions, attention, slots=slots, max_frames=max_frames, dtype=self.dtype)

    @torch.inference_mode()
    def forward(
        self, audio: Tensor, state: MimiEncoderState, *, rows: Tensor | None = None, active: Tensor | None = None
    ) -> Tensor:
        """One step: audio (rows, frames * frame_samples), float32, to codes (rows, codebooks, frames), int64.

        `rows` and `active` as in `MimiDecoder.forward`; raises INVALID_VALUE for a part of a frame.
        """
        if audio.shape[1] % self.config.frame_samples:
            raise invalid_value("audio", audio.shape[1], f"a multiple of {self.config.frame_samples} samples")
        return self.quantizer(self._vectors(audio, state, rows, active))

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        """Whole utterances of any length: audio (rows, samples), float32, to codes (rows, codebooks, frames), int64.

        A last frame of which only a part is there is completed inside the layers, as `MimiModel.encode` does it.
        """
        whole = audio.shape[1] // self.config.frame_samples * self.config.frame_samples
        if not audio.shape[1]:
            raise invalid_value("audio", 0, "at least 1 sample")
        frames = max(1, min(_OFFLINE_FRAMES, whole // self.config.frame_samples))
        state = self.open_state(len(audio), max_frames=frames)
        pieces = audio[:, :whole].split(frames * self.config.frame_samples, dim=1) if whole else ()
        codes = [self(piece, state) for piece in pieces]
        if rest := audio.shape[1] - whole:
            padded = torch.nn.functional.pad(audio[:, whole:], (0, self.config.frame_samples - rest))
            ends_at = Fraction(rest, self.config.frame_samples)
            codes.append(self.quantizer(self._vectors(padded, state, None, None, ends_at)))
        return torch.cat(codes, 2)

    def _vectors(
        self,
        audio: Tensor,
        state: MimiEncoderState,
        rows: Tensor | None,
        active: Tensor | None,
        ends_at: Fraction | None = None,
    ) -> Tensor:
        """(rows, frames, hidden_size), before the search."""
        step = state.begin((len(audio), audio.shape[1] // self.config.frame_samples), rows, active, ends_at)
        x = audio.to(self.dtype)[:, :, None]
        for layer in self.layers:
            x = layer(x, step)
        x = self.downsample(self.transformer(x, step.attention), step)
        state.commit(step)
        return x
