"""Packs utterances into fixed rows: prompt, then audio frames, then the next utterance."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from train_tiny_speech.code_store import CodedUtterance, read_codes
from train_tiny_speech.speech_store import ShardReader
from train_tiny_speech.text_tokens import PAD, UNCONDITIONAL, character_prompt, mixed_prompt, phoneme_prompt

_TARGET_SHARE = 5 / 8
_WAITING = 24


@dataclass(frozen=True)
class PromptMix:
    """How often a prompt is left out (for guidance), spelled, pronounced; the rest mixes both word by word."""

    nothing: float = 0.08
    characters: float = 0.28
    phonemes: float = 0.27

    def prompt(self, text: str, phonemes: str, rng: np.random.Generator) -> list[int]:
        choice = rng.random()
        if choice < self.nothing:
            return list(UNCONDITIONAL)
        if choice < self.nothing + self.characters:
            return character_prompt(text)
        words, pronunciations = text.split(" "), phonemes.split(" ")
        if choice < self.nothing + self.characters + self.phonemes or len(words) != len(pronunciations):
            return phoneme_prompt(phonemes)
        return mixed_prompt(words, pronunciations, (rng.random(len(words)) < rng.uniform(0.05, 1.0)).tolist())


@dataclass(frozen=True)
class PackedBatch:
    """All [rows, length], but for `codes` [rows, length, codebooks] and `predicting` [targets].

    `text` is PAD at audio frames; `codes` is zero everywhere else. `document` is -1 in padding. `position` counts from
    each document's start. `predicting` are flat positions, in random order, whose output is the frame after them (or
    zeros, which end the audio, if none is); -1 fills it up.
    """

    text: Tensor
    codes: Tensor
    document: Tensor
    position: Tensor
    predicting: Tensor

    def pin_memory(self) -> PackedBatch:
        return PackedBatch(**{name: value.pin_memory() for name, value in vars(self).items()})


class FixedSpeech:
    """Draws utterances in a shuffled order, each once, then again."""

    def __init__(self, utterances: Sequence[CodedUtterance]) -> None:
        self._utterances = utterances

    def draw(self, rng: np.random.Generator) -> Iterator[CodedUtterance]:
        while True:
            for i in rng.permutation(len(self._utterances)):
                yield self._utterances[i]


class GrowingSpeech:
    """Draws from a folder of coded shards while more appear there; its first shard is left to be held out.

    Of two candidates the newer is taken: the older has been drawn before.
    """

    def __init__(self, folder: Path, look_every: float = 2.0) -> None:
        self._folder, self._look_every = folder, look_every

    def draw(self, rng: np.random.Generator) -> Iterator[CodedUtterance]:
        reader, utterances, looked = ShardReader(self._folder), list[CodedUtterance](), 0.0
        while True:
            if not utterances or time.monotonic() - looked >= self._look_every:
                fresh = [path for path in reader.unread(10_000) if path != held_out_shard(self._folder)]
                utterances += [u for path in fresh for u in read_codes(path)]
                looked = time.monotonic()
                if not utterances:
                    time.sleep(0.5)
                    continue
            yield utterances[int(rng.integers(len(utterances), size=2).max())]


def held_out_shard(folder: Path) -> Path:
    return folder / "codes-00000.npz"


class PackedRows(IterableDataset[PackedBatch]):
    """Endless batches of `rows` x `length`; each data worker draws on its own. The number of targets is fixed."""

    def __init__(
        self, speech: FixedSpeech | GrowingSpeech, rows: int, length: int, mix: PromptMix, seed: int, codebooks: int = 6
    ) -> None:
        self._speech, self._mix, self._seed = speech, mix, seed
        self._shape = rows, length, codebooks

    def __iter__(self) -> Iterator[PackedBatch]:
        worker = get_worker_info()
        rng = np.random.default_rng([self._seed, worker.id if worker else 0])
        packer, waiting = _Packer(*self._shape), list[_Document]()
        for utterance in self._speech.draw(rng):
            document = self._mix.prompt(utterance.text, utterance.phonemes, rng), utterance.codes
            if _size(document) > self._shape[1] or packer.place(document):
                continue
            waiting.append(document)
            if len(waiting) == _WAITING:
                yield packer.batch(rng)
                packer = _Packer(*self._shape)
                waiting = [w for w in waiting if not packer.place(w)]


_Document = tuple[list[int], NDArray[np.int16]]


def _size(document: _Document) -> int:
    return len(document[0]) + len(document[1])


class _Packer:
    def __init__(self, rows: int, length: int, codebooks: int) -> None:
        self._text = np.full((rows, length), PAD, np.int16)
        self._codes = np.zeros((rows, length, codebooks), np.int16)
        self._document = np.full((rows, length), -1, np.int16)
        self._position = np.zeros((rows, length), np.int16)
        self._predicting = np.zeros((rows, length), bool)
        self._filled = np.zeros(rows, np.int64)
        self._documents = 0

    def place(self, document: _Document) -> bool:
        """In the fullest row that has room; False if there is none."""
        prompt, codes = document
        fits = self._filled + _size(document) <= self._text.shape[1]
        if not fits.any():
            return False
        row = int(np.where(fits, self._filled, -1).argmax())
        start = self._filled[row]
        speech, end = start + len(prompt), start + len(prompt) + len(codes)
        self._text[row, start:speech] = prompt
        self._codes[row, speech:end] = codes
        self._predicting[row, speech - 1 : end] = True
        self._document[row, start:end] = self._documents
        self._position[row, start:end] = np.arange(end - start)
        self._filled[row] = end
        self._documents += 1
        return True

    def batch(self, rng: np.random.Generator) -> PackedBatch:
        predicting = np.full(int(self._text.size * _TARGET_SHARE), -1, np.int32)
        chosen = rng.permutation(np.flatnonzero(self._predicting))[: len(predicting)]
        predicting[: len(chosen)] = chosen
        arrays = (self._text, self._codes, self._document, self._position, predicting)
        return PackedBatch(*(torch.from_numpy(array) for array in arrays))
