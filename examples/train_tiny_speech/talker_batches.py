"""Packs utterances into fixed rows: prompt, then audio frames, then the next utterance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from train_tiny_speech.text_tokens import UNCONDITIONAL, character_prompt, mixed_prompt, phoneme_prompt


@dataclass(frozen=True)
class CodedSpeech:
    """`codes` [all frames + 1, codebooks]: the last row is the end-of-audio frame of zeros."""

    codes: NDArray[np.int16]
    starts: NDArray[np.int64]
    texts: list[str]
    phonemes: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def end_frame(self) -> int:
        return len(self.codes) - 1


def load_codes(path: Path) -> CodedSpeech:
    with np.load(path) as file:
        codes = np.concatenate([file["codes"], np.zeros((1, file["codes"].shape[1]), np.int16)])
        starts = np.concatenate([[0], np.cumsum(file["frames"])])
        return CodedSpeech(codes, starts, [str(t) for t in file["text"]], [str(p) for p in file["phonemes"]])


@dataclass(frozen=True)
class PromptMix:
    """How often a prompt is left out (for guidance), spelled, pronounced; the rest mixes both word by word."""

    nothing: float = 0.08
    characters: float = 0.42
    phonemes: float = 0.2

    def prompt(self, text: str, phonemes: str, rng: np.random.Generator) -> list[int]:
        choice = rng.random()
        if choice < self.nothing:
            return list(UNCONDITIONAL)
        if choice < self.nothing + self.characters:
            return character_prompt(text)
        words, pronunciations = text.split(" "), phonemes.split(" ")
        if choice < self.nothing + self.characters + self.phonemes or len(words) != len(pronunciations):
            return phoneme_prompt(phonemes)
        return mixed_prompt(words, pronunciations, (rng.random(len(words)) < rng.uniform(0.05, 0.7)).tolist())


@dataclass(frozen=True)
class PackedBatch:
    """All int64. The first four are [rows, length].

    `frame` is the index of an audio frame, -1 where `text` holds a token. `document` is -1 in padding.
    `position` counts from each document's start. `predicting` [targets] are flat positions whose output
    is the frame `target`.
    """

    text: Tensor
    frame: Tensor
    document: Tensor
    position: Tensor
    predicting: Tensor
    target: Tensor

    def to(self, device: torch.device) -> PackedBatch:
        return PackedBatch(**{name: value.to(device, non_blocking=True) for name, value in vars(self).items()})

    def pin_memory(self) -> PackedBatch:
        return PackedBatch(**{name: value.pin_memory() for name, value in vars(self).items()})


class PackedRows(IterableDataset[PackedBatch]):
    """Endless batches of `rows` x `length`; each data worker shuffles on its own. Draws a fixed number of targets."""

    def __init__(
        self, speech: CodedSpeech, chosen: NDArray[np.int64], rows: int, length: int, mix: PromptMix, seed: int
    ) -> None:
        self._speech, self._chosen, self._mix, self._seed = speech, chosen, mix, seed
        self._rows, self._length = rows, length

    def __iter__(self) -> Iterator[PackedBatch]:
        worker = get_worker_info()
        rng = np.random.default_rng([self._seed, worker.id if worker else 0])
        packer = _Packer(self._rows, self._length)
        while True:
            for utterance in rng.permutation(self._chosen):
                prompt = self._mix.prompt(self._speech.texts[utterance], self._speech.phonemes[utterance], rng)
                first, end = self._speech.starts[utterance], self._speech.starts[utterance + 1]
                if len(prompt) + end - first > self._length:
                    continue
                if not packer.fits(len(prompt) + end - first):
                    yield packer.batch(rng)
                    packer = _Packer(self._rows, self._length)
                packer.place(prompt, np.arange(first, end), self._speech.end_frame)


class _Packer:
    def __init__(self, rows: int, length: int) -> None:
        self._text = np.zeros((rows, length), np.int64)
        self._frame, self._target, self._document = (np.full((rows, length), -1) for _ in range(3))
        self._position = np.zeros((rows, length), np.int64)
        self._filled = np.zeros(rows, np.int64)
        self._documents = 0

    def fits(self, size: int) -> bool:
        return bool(self._filled.min() + size <= self._text.shape[1])

    def place(self, prompt: list[int], frames: NDArray[np.int64], end_frame: int) -> None:
        row = int(self._filled.argmin())
        start = self._filled[row]
        speech, end = start + len(prompt), start + len(prompt) + len(frames)
        self._text[row, start:speech] = prompt
        self._frame[row, speech:end] = frames
        self._target[row, speech - 1 : end - 1] = frames
        self._target[row, end - 1] = end_frame
        self._document[row, start:end] = self._documents
        self._position[row, start:end] = np.arange(end - start)
        self._filled[row] = end
        self._documents += 1

    def batch(self, rng: np.random.Generator) -> PackedBatch:
        target = self._target.reshape(-1)
        predicting = np.flatnonzero(target >= 0)
        wanted = len(target) * 5 // 8
        chosen = rng.choice(predicting, wanted, replace=len(predicting) < wanted)
        arrays = (self._text, self._frame, self._document, self._position, chosen, target[chosen])
        return PackedBatch(*(torch.from_numpy(array) for array in arrays))
