"""Codes to audio, frame by frame, for many streams in one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from streamsynth.errors import invalid_value
from streamsynth.models.mimi.config import MimiConfig
from streamsynth.models.mimi.convolution import CausalConv, DepthwiseUpsample, number_convolutions, seanet
from streamsynth.models.mimi.layout import decoder_layers, upsampling
from streamsynth.models.mimi.quantizer import CodeTables
from streamsynth.models.mimi.streaming import StreamState
from streamsynth.models.mimi.transformer import Transformer, attention_shape
from streamsynth.models.mimi.weights import DECODING, Tensors, read_config, read_tensors

_OFFLINE_FRAMES = 32


class MimiDecoderState(StreamState):
    """The streams of one `MimiDecoder`."""


class MimiDecoder(nn.Module):
    """The decoding half of Mimi: what transformers' `MimiModel.decode` gives, in steps of any length."""

    def __init__(self, config: MimiConfig, tensors: Tensors, *, dtype: torch.dtype = torch.float32) -> None:
        """`tensors`: float32, under their Hugging Face names. The last layer computes in float32 in any case."""
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.tables = CodeTables(config, tensors).to(dtype)
        layer = upsampling(config)
        depthwise = layer.groups == layer.inputs
        self.upsample = (DepthwiseUpsample(layer, tensors) if depthwise else CausalConv(layer, tensors, 1)).to(dtype)
        self.transformer = Transformer(config, tensors, "decoder_transformer").to(dtype)
        self.layers = seanet(decoder_layers(config), tensors, per_frame=2)
        self.layers[:-1].to(dtype)
        self._convolutions = number_convolutions(self)

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Self:
        """From a folder with `config.json` and safetensors, of Mimi alone or of CSM; blocking.

        Raises as `MimiConfig.from_hf` and `read_tensors`.
        """
        config, prefix = read_config(folder)
        return cls(config, read_tensors(folder, config, DECODING, prefix=prefix), dtype=dtype).to(device)

    @property
    def device(self) -> torch.device:
        return self.tables.vectors.device

    def open_state(self, slots: int, *, max_frames: int = 8) -> MimiDecoderState:
        """State for `slots` streams, on the decoder's device; a step may hold `max_frames` frames."""
        attention = attention_shape(self.config, self.device)
        return MimiDecoderState(self._convolutions, attention, slots=slots, max_frames=max_frames, dtype=self.dtype)

    @torch.inference_mode()
    def forward(
        self, codes: Tensor, state: MimiDecoderState, *, rows: Tensor | None = None, active: Tensor | None = None
    ) -> Tensor:
        """One step: codes (rows, codebooks, frames), int64, to samples (rows, frames * frame_samples), float32.

        `rows` (int64) gives each row's slot; without it every slot takes part, in order. A row that is not `active`
        (bool) keeps its state, and its samples mean nothing. A slot may stand in several rows if all of them are idle.
        Fewer codebooks than the codec has are allowed. Nothing is read on the host, so a step can be captured; that
        codes lie within the codebooks is the caller's duty.
        """
        step = state.begin((len(codes), codes.shape[2]), rows, active)
        x = self.upsample(self.tables(codes), step)
        x = self.transformer(x, step.attention)
        for layer in self.layers:
            x = layer(x, step)
        state.commit(step)
        return x.flatten(1)

    def decode(self, codes: Tensor) -> Tensor:
        """Whole utterances: codes (rows, codebooks, frames), int64, to samples (rows, frames * frame_samples)."""
        rows, books, frames = codes.shape
        if not 1 <= books <= self.config.num_quantizers:
            raise invalid_value("codebooks", books, f"1 to {self.config.num_quantizers}")
        for code in (int(codes.min()), int(codes.max())) if frames else ():
            if not 0 <= code < self.config.codebook_size:
                raise invalid_value("codes", code, f"0 to {self.config.codebook_size - 1}")
        state = self.open_state(rows, max_frames=max(1, min(frames, _OFFLINE_FRAMES)))
        pieces = [self(piece, state) for piece in codes.split(_OFFLINE_FRAMES, dim=2) if piece.shape[2]]
        return torch.cat(pieces, 1) if pieces else torch.zeros(rows, 0, device=codes.device)
