"""Packs documents into fixed rows. In each a prompt, then its audio frames, then the next segment's prompt."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from train_tiny_speech.code_store import CodedUtterance, read_codes
from train_tiny_speech.documents import ChainMix, Document, PromptMix, fitting
from train_tiny_speech.speech_store import ShardReader
from train_tiny_speech.text_tokens import PAD

_TARGET_SHARE = 5 / 8
_WAITING = 24


@dataclass(frozen=True)
class PackedBatch:
    """All [rows, length], but for `codes` [rows, length, codebooks] and `predicting` [targets].

    `text` is PAD at audio frames; `codes` is zero everywhere else. `document` is -1 in padding. `position` counts from
    each document's start. `predicting` are flat positions, in random order, whose output is the frame after them (or
    zeros, which end the audio, if none is, at the end of each segment); -1 fills it up.
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
    """Draws from a folder of coded shards while more appear there.

    Of two candidates the newer is taken: the older has been drawn before.
    """

    def __init__(self, folder: Path, look_every: float = 2.0) -> None:
        self._folder, self._look_every = folder, look_every

    def draw(self, rng: np.random.Generator) -> Iterator[CodedUtterance]:
        reader, utterances, looked = ShardReader(self._folder), list[CodedUtterance](), 0.0
        while True:
            if not utterances or time.monotonic() - looked >= self._look_every:
                utterances += [u for path in reader.unread(10_000) for u in read_codes(path)]
                looked = time.monotonic()
                if not utterances:
                    time.sleep(0.5)
                    continue
            yield utterances[int(rng.integers(len(utterances), size=2).max())]


class PackedRows(IterableDataset[PackedBatch]):
    """Endless batches of `rows` x `length`; each data worker draws on its own. The number of targets is fixed."""

    def __init__(
        self,
        speech: FixedSpeech | GrowingSpeech,
        rows: int,
        length: int,
        prompts: PromptMix,
        chains: ChainMix,
        seed: int,
        codebooks: int = 6,
    ) -> None:
        self._speech, self._prompts, self._chains, self._seed = speech, prompts, chains, seed
        self._shape = rows, length, codebooks

    def __iter__(self) -> Iterator[PackedBatch]:
        worker = get_worker_info()
        rng = np.random.default_rng([self._seed, worker.id if worker else 0])
        return _packed(self._documents(rng), *self._shape, rng)

    def _documents(self, rng: np.random.Generator) -> Iterator[Document]:
        utterances = self._speech.draw(rng)
        while True:
            yield self._prompts.document(self._chains.pieces(utterances, rng), rng)


def pack_all(documents: Iterable[Document], rows: int, length: int, codebooks: int = 6) -> list[PackedBatch]:
    """Each document once; the last batch may be emptier than the others."""
    return list(_packed(iter(documents), rows, length, codebooks, np.random.default_rng(0)))


def _packed(
    documents: Iterator[Document], rows: int, length: int, codebooks: int, rng: np.random.Generator
) -> Iterator[PackedBatch]:
    packer, waiting = _Packer(rows, length, codebooks), list[Document]()
    for document in documents:
        document = fitting(document, length)
        if packer.place(document):
            continue
        waiting.append(document)
        if len(waiting) == _WAITING:
            yield packer.batch(rng)
            packer = _Packer(rows, length, codebooks)
            waiting = [w for w in waiting if not packer.place(w)]
    while True:
        yield packer.batch(rng)
        if not waiting:
            return
        packer = _Packer(rows, length, codebooks)
        waiting = [w for w in waiting if not packer.place(w)]


class _Packer:
    def __init__(self, rows: int, length: int, codebooks: int) -> None:
        self._text = np.full((rows, length), PAD, np.int16)
        self._codes = np.zeros((rows, length, codebooks), np.int16)
        self._document = np.full((rows, length), -1, np.int16)
        self._position = np.zeros((rows, length), np.int16)
        self._predicting = np.zeros((rows, length), bool)
        self._filled = np.zeros(rows, np.int64)
        self._documents = 0

    def place(self, document: Document) -> bool:
        """In the fullest row that has room; False if there is none."""
        size = sum(map(len, document))
        fits = self._filled + size <= self._text.shape[1]
        if not fits.any():
            return False
        row = int(np.where(fits, self._filled, -1).argmax())
        start = end = int(self._filled[row])
        for segment in document:
            speech = end + len(segment.prompt)
            self._text[row, end:speech] = segment.prompt
            end = speech + len(segment.codes)
            self._codes[row, speech:end] = segment.codes
            self._predicting[row, speech - 1 : end] = segment.judged
        self._document[row, start:end] = self._documents
        self._position[row, start:end] = np.arange(size)
        self._filled[row] = end
        self._documents += 1
        return True

    def batch(self, rng: np.random.Generator) -> PackedBatch:
        predicting = np.full(int(self._text.size * _TARGET_SHARE), -1, np.int32)
        chosen = rng.permutation(np.flatnonzero(self._predicting))[: len(predicting)]
        predicting[: len(chosen)] = chosen
        arrays = (self._text, self._codes, self._document, self._position, predicting)
        return PackedBatch(*(torch.from_numpy(array) for array in arrays))
