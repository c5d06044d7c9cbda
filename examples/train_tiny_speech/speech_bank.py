"""Speech and its codes in device memory, for random windows at no cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_tiny_speech.frames import FRAME_SAMPLES
from train_tiny_speech.speech_store import Utterance


@dataclass(frozen=True)
class Window:
    """`frames` frames are decoded; the losses see `judged` of them, whose decoder has heard what came before."""

    frames: int = 32
    judged: int = 24

    @property
    def lead(self) -> int:
        return self.frames - self.judged


class SpeechBank:
    """Holds up to `capacity` frames of whole utterances."""

    def __init__(self, capacity: int, codebooks: int, device: torch.device) -> None:
        self._samples = torch.zeros(capacity, FRAME_SAMPLES, dtype=torch.int16, device=device)
        self._codes = torch.zeros(capacity, codebooks, dtype=torch.int16, device=device)
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self.frames = 0

    @property
    def full(self) -> bool:
        return self.frames >= len(self._samples) - 400

    def add(self, utterances: Sequence[Utterance], codes: Sequence[NDArray[np.int16]]) -> None:
        """Whatever no longer fits is left out."""
        for utterance, utterance_codes in zip(utterances, codes, strict=True):
            end = self.frames + utterance.frames
            if end > len(self._samples):
                return
            self._samples[self.frames : end] = torch.from_numpy(utterance.samples).view(-1, FRAME_SAMPLES)
            self._codes[self.frames : end] = torch.from_numpy(utterance_codes)
            self._starts.append(self.frames)
            self._lengths.append(utterance.frames)
            self.frames = end

    def draw(self, rng: np.random.Generator, batch: int, window: Window, opening_share: float = 0.15) -> Tensor:
        """Where `batch` windows start and where their judged parts start: int64 [2, batch], on the host.

        Windows lie inside one utterance. A share of them opens the utterance and is judged from its first frame.
        """
        starts, lengths = np.array(self._starts), np.array(self._lengths)
        fits = np.flatnonzero(lengths >= window.frames)
        chosen = rng.choice(fits, batch)
        offsets = (rng.random(batch) * (lengths[chosen] - window.frames + 1)).astype(np.int64)
        offsets[rng.random(batch) < opening_share] = 0
        leads = np.where(offsets == 0, 0, window.lead)
        return torch.from_numpy(np.stack([starts[chosen] + offsets, leads]))

    def window(self, draw: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        """For a draw on the device: codes [batch, frames, codebooks], and samples [batch, judged * 960] in -1 to 1."""
        start, lead = draw
        frames = start[:, None] + torch.arange(window.frames, device=start.device)
        judged = (start + lead)[:, None] + torch.arange(window.judged, device=start.device)
        return self._codes[frames].long(), self._samples[judged].flatten(1).float() / 32768


def judged_part(decoded: Tensor, draw: Tensor, window: Window) -> Tensor:
    """The samples of [batch, frames * 960] that `SpeechBank.window` gives the real ones of."""
    frames = draw[1][:, None] + torch.arange(window.judged, device=decoded.device)
    index = frames[..., None].expand(-1, -1, FRAME_SAMPLES)
    return decoded.unflatten(1, (window.frames, FRAME_SAMPLES)).gather(1, index).flatten(1)
