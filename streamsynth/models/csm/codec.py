"""The codec stage of the csm pipeline."""

from __future__ import annotations

from pathlib import Path

import torch

from streamsynth.models.csm.pipeline import CODEBOOKS, SAMPLE_RATE
from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.engine import MimiEngine


class CsmCodec(MimiEngine):
    """Loads the Mimi decoder that lies in a CSM checkpoint's folder."""

    def __init__(self, *, folder: str, device: str, dtype: str, max_streams: int) -> None:
        torch.set_num_threads(1)
        decoder = MimiDecoder.load(Path(folder), dtype=getattr(torch, dtype), device=device)
        super().__init__(decoder, sample_rate=SAMPLE_RATE, max_streams=max_streams, frame_units=CODEBOOKS)
