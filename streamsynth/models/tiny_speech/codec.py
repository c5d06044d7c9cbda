"""The codec stage of tiny-speech."""

from __future__ import annotations

import torch

from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.engine import MimiEngine
from streamsynth.models.tiny_speech.pipeline import SAMPLE_RATE
from streamsynth.models.tiny_speech.places import weights_folder


class TinyCodec(MimiEngine):
    """Loads the codec's decoder."""

    def __init__(self, *, device: str, dtype: str, gain: float, max_streams: int) -> None:
        torch.set_num_threads(1)
        decoder = MimiDecoder.load(weights_folder() / "codec", dtype=getattr(torch, dtype), device=device)
        super().__init__(decoder, sample_rate=SAMPLE_RATE, max_streams=max_streams, gain=gain, shapes=True)
