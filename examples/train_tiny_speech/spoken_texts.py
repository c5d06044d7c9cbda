"""What the teacher is given to read: the corpus's sentences, some of them two in one go, some with another mark."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_OTHER_MARKS = (";", ":", " —")


@dataclass(frozen=True)
class SpokenText:
    text: str
    phonemes: str

    def __add__(self, other: SpokenText) -> SpokenText:
        return SpokenText(f"{self.text} {other.text}", f"{self.phonemes} {other.phonemes}")


@dataclass(frozen=True)
class ReadingPlan:
    """How many texts are two sentences, of that many phonemes each at most, and how many have a comma replaced."""

    joined: float = 0.4
    joined_phonemes: int = 105
    other_mark: float = 0.12

    def texts(self, sentences: Sequence[SpokenText], rng: random.Random) -> Iterator[SpokenText]:
        """Each sentence once."""
        waiting: SpokenText | None = None
        for sentence in sentences:
            if rng.random() < self.other_mark:
                sentence = with_other_mark(sentence, rng)
            if len(sentence.phonemes) > self.joined_phonemes:
                yield sentence
            elif waiting is not None:
                yield waiting + sentence
                waiting = None
            elif rng.random() < self.joined / (2 - self.joined):
                waiting = sentence
            else:
                yield sentence
        if waiting is not None:
            yield waiting


def with_other_mark(sentence: SpokenText, rng: random.Random) -> SpokenText:
    """A comma that both alphabets have becomes a semicolon, a colon or a dash; without one nothing changes."""
    words, pronunciations = sentence.text.split(" "), sentence.phonemes.split(" ")
    if len(words) != len(pronunciations):
        return sentence
    commas = [i for i, (w, p) in enumerate(zip(words, pronunciations, strict=True)) if w[-1:] == p[-1:] == ","]
    if commas:
        at, mark = rng.choice(commas), rng.choice(_OTHER_MARKS)
        words[at], pronunciations[at] = words[at][:-1] + mark, pronunciations[at][:-1] + mark
    return SpokenText(" ".join(words), " ".join(pronunciations))
