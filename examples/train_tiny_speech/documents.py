"""What the talker reads in one go: a chain of segments, each a prompt and the frames that say it.

A chain is one utterance cut at its pauses, or utterances one behind the other; most utterances stand alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from train_tiny_speech.code_store import CodedUtterance
from train_tiny_speech.cuts import SENTENCE_MARKS, Cut
from train_tiny_speech.text_tokens import UNCONDITIONAL, character_prompt, mixed_prompt, phoneme_prompt

_TRIES = 30

Reading = Callable[[CodedUtterance], list[int]]


@dataclass(frozen=True)
class Segment:
    """`prompt`, then `codes` [frames, codebooks]; `judged` if the talker is to learn them."""

    prompt: list[int]
    codes: NDArray[np.int16]
    judged: bool = True

    def __len__(self) -> int:
        return len(self.prompt) + len(self.codes)


Document = list[Segment]


@dataclass(frozen=True)
class PromptMix:
    """How often a prompt is left out (for guidance), spelled, pronounced; the rest mixes both word by word."""

    nothing: float = 0.08
    characters: float = 0.28
    phonemes: float = 0.27

    def reading(self, rng: np.random.Generator) -> Reading:
        """How a whole document is read."""
        choice = rng.random() * (1 - self.nothing)
        if choice < self.characters:
            return lambda u: character_prompt(u.text)
        if choice < self.characters + self.phonemes:
            return lambda u: phoneme_prompt(u.phonemes)
        share = rng.uniform(0.05, 1.0)
        return lambda u: _mixed(u, share, rng)

    def document(self, pieces: Sequence[CodedUtterance], rng: np.random.Generator) -> Document:
        """Ends with the first piece whose prompt is left out: the prompts before it are always there."""
        read = self.reading(rng)
        document = []
        for piece in pieces:
            if rng.random() < self.nothing:
                return [*document, Segment(list(UNCONDITIONAL), piece.codes)]
            document.append(Segment(read(piece), piece.codes))
        return document


def _mixed(utterance: CodedUtterance, share: float, rng: np.random.Generator) -> list[int]:
    words, pronunciations = utterance.text.split(" "), utterance.phonemes.split(" ")
    if len(words) != len(pronunciations):
        return phoneme_prompt(utterance.phonemes)
    return mixed_prompt(words, pronunciations, (rng.random(len(words)) < share).tolist())


@dataclass(frozen=True)
class ChainMix:
    """How many documents are one segment, and how many one utterance cut at its pauses; the rest are several
    utterances. Of a cut one some begin in the middle, as they do where older context is dropped.
    """

    alone: float = 0.5
    cut: float = 0.32
    beheaded: float = 0.2

    def pieces(self, utterances: Iterator[CodedUtterance], rng: np.random.Generator) -> list[CodedUtterance]:
        choice = rng.random()
        if choice < self.alone:
            return [_one_sentence(next(utterances), rng)]
        if choice < self.alone + self.cut:
            return self._cut(utterances, rng)
        return [_one_sentence(next(utterances), rng) for _ in range(rng.integers(2, 4))]

    def _cut(self, utterances: Iterator[CodedUtterance], rng: np.random.Generator) -> list[CodedUtterance]:
        utterance = next((u for _, u in zip(range(_TRIES), utterances, strict=False) if u.cuts), None)
        if utterance is None:
            return [next(utterances)]
        kept = rng.random(len(utterance.cuts)) < rng.uniform(0.3, 1.0)
        kept[rng.integers(len(kept))] = True
        sentence_ends = _sentence_ends(utterance)
        pieces = cut_up(utterance, [c for c, k in zip(utterance.cuts, kept, strict=True) if k or c in sentence_ends])
        beheaded = rng.random() < self.beheaded
        return pieces[int(rng.integers(1, len(pieces))) :] if beheaded else pieces


def cut_up(utterance: CodedUtterance, cuts: Sequence[Cut]) -> list[CodedUtterance]:
    """The pieces of an utterance, without the silence between them that the cuts leave out."""
    words, pronunciations = utterance.text.split(" "), utterance.phonemes.split(" ")
    edges = [Cut(0, 0, 0), *cuts, Cut(len(words), len(utterance.codes), 0)]
    return [
        CodedUtterance(
            " ".join(words[a.words : b.words]),
            " ".join(pronunciations[a.words : b.words]),
            utterance.codes[a.start : b.end],
        )
        for a, b in pairwise(edges)
    ]


def sentences_of(utterance: CodedUtterance) -> list[CodedUtterance]:
    return cut_up(utterance, _sentence_ends(utterance))


def _sentence_ends(utterance: CodedUtterance) -> list[Cut]:
    words = utterance.text.split(" ")
    return [cut for cut in utterance.cuts if words[cut.words - 1][-1:] in SENTENCE_MARKS]


def _one_sentence(utterance: CodedUtterance, rng: np.random.Generator) -> CodedUtterance:
    sentences = sentences_of(utterance)
    return sentences[int(rng.integers(len(sentences)))]


def fitting(document: Document, length: int) -> Document:
    """Without the last segments that are too many for `length` positions; empty if the first one is."""
    ends = np.cumsum([len(segment) for segment in document])
    return document[: int((ends <= length).sum())]


def last_judged(document: Document) -> Document:
    """The same with all but its last segment as mere context."""
    return [*(replace(segment, judged=False) for segment in document[:-1]), document[-1]]
