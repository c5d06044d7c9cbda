"""Text to the talker's prompts: `<s> <ph> phonemes </s>`, one sentence each, with ids from `vocab.json`."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import torch
from torch import Tensor

from streamsynth.engine.talker import Passage
from streamsynth.models.csm.model import ABSENT
from streamsynth.models.hibari.phonemes import Phonemizer, split_phonemes
from streamsynth.models.hibari.reading import refuse_foreign
from streamsynth.speech import Granularity
from streamsynth.text.boundaries import Ending
from streamsynth.text.cutter import TextCutter

MAX_PHONEMES = 150
"""About 10 s of speech: the talker was trained on sentences of at most 12 s."""

FRAMES_PER_PHONEME = 6
"""A passage that runs to this many frames a phoneme does not end by itself: three times the slowest speech."""

MIN_FRAMES = 50


class Vocabulary:
    """Phonemes to ids. `null` is the prompt of the row that guidance steers away from."""

    def __init__(self, folder: Path, codebooks: int) -> None:
        ids = json.loads((folder / "vocab.json").read_text())
        self._phonemes: dict[str, int] = ids["phonemes"]
        self._specials: dict[str, int] = ids["specials"]
        self._codebooks = codebooks
        self.null = self._position(["<s>", "<null>", "</s>"], [])

    @property
    def alphabet(self) -> frozenset[str]:
        return frozenset(self._phonemes)

    def prompt(self, phonemes: str) -> Tensor:
        """Input positions, int64 (length, 1 + codebooks), of a passage."""
        return self._position(["<s>", "<ph>", "</s>"], [self._phonemes[phoneme] for phoneme in phonemes])

    def _position(self, specials: list[str], said: list[int]) -> Tensor:
        begin, mode, end = (self._specials[name] for name in specials)
        text = torch.tensor([begin, mode, *said, end])[:, None]
        return torch.cat((text, torch.full((len(text), self._codebooks), ABSENT)), 1)


class TinyReader:
    """The front end of one request: sentences become passages as soon as they are certain."""

    def __init__(self, vocabulary: Vocabulary, phonemizer: Phonemizer, granularity: Granularity, guided: bool) -> None:
        self._vocabulary = vocabulary
        self._phonemizer = phonemizer
        self._one_segment = granularity is Granularity.NONE
        self._cutter = TextCutter(clauses=granularity is Granularity.CLAUSE)
        self._guided = guided
        self._finished = False
        self._segment = 0
        self._said: list[str] = []
        self._passages: deque[Passage] = deque()

    def push(self, text: str) -> None:
        self._said.append(text)
        self._cutter.push(text)
        self._read()

    def finish(self) -> None:
        self._finished = True
        self._cutter.finish()
        self._read()

    @property
    def exhausted(self) -> bool:
        return self._finished and not self._passages

    def take(self) -> Passage | None:
        return self._passages.popleft() if self._passages else None

    def _read(self) -> None:
        while (unit := self._cutter.take()) is not None:
            refuse_foreign(unit.text)
            phonemes = self._phonemizer(unit.text)
            if phonemes:
                self._say(unit.text, phonemes, unit.ending)

    def _say(self, text: str, phonemes: str, ending: Ending) -> None:
        pieces = list(split_phonemes(phonemes, ending, MAX_PHONEMES))
        for number, piece in enumerate(pieces):
            prompt = self._vocabulary.prompt(piece.phonemes)
            self._passages.append(
                Passage(
                    prompts=[prompt, self._vocabulary.null] if self._guided else [prompt],
                    max_frames=max(MIN_FRAMES, FRAMES_PER_PHONEME * len(piece.phonemes)),
                    segment=0 if self._one_segment else self._segment,
                    text="".join(self._said) if self._one_segment else text,
                    ends_segment=not self._one_segment and number == len(pieces) - 1,
                )
            )
        self._segment += 1
