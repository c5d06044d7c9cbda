"""Text to the talker's prompts, one sentence each, with ids from `vocab.json`.

A prompt is `<s>`, then `<ph>` or `<ch>` before the first symbol and where phonemes and characters change, then `</s>`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from streamsynth.engine.passage import Passage
from streamsynth.models.csm.model import ABSENT
from streamsynth.models.hibari.phonemes import Piece, split_phonemes
from streamsynth.models.hibari.reading import refuse_foreign
from streamsynth.models.tiny_speech.lexicon import as_phonemes
from streamsynth.models.tiny_speech.pipeline import FRAME_RATE
from streamsynth.models.tiny_speech.reading import Alphabet, Reading
from streamsynth.speech import Granularity
from streamsynth.text.boundaries import Ending
from streamsynth.text.cutter import TextCutter, Unit
from streamsynth.text.pauses import PAUSE_S

MAX_SYMBOLS = 150
"""About 10 s of speech: the talker was trained on sentences of at most 12 s."""

USUAL_FRAMES_PER_SYMBOL = 2
"""What slow speech takes."""

FRAMES_PER_SYMBOL = 6
"""A passage that runs to this many frames a symbol does not end by itself: three times the slowest speech."""

MIN_FRAMES = 50

_MARKS = {Alphabet.PHONEMES: "<ph>", Alphabet.CHARACTERS: "<ch>"}
_TABLES = {Alphabet.PHONEMES: "phonemes", Alphabet.CHARACTERS: "chars"}
_OTHER = (("chars", "phonemes"), ("phonemes", "chars"))


class Vocabulary:
    """Symbols of one alphabet to ids. `null` is the prompt of the row that guidance steers away from.

    Among characters, phonemes are symbols too, written `as_phonemes`.
    """

    def __init__(self, folder: Path, alphabet: Alphabet, codebooks: int) -> None:
        tables = json.loads((folder / "vocab.json").read_text())
        self._ids: Mapping[str, int] = tables[_TABLES[alphabet]]
        specials: Mapping[str, int] = tables["specials"]
        self._begin, self._end, nothing = (specials[name] for name in ("<s>", "</s>", "<null>"))
        self._mark = specials[_MARKS[alphabet]]
        self._marks: Mapping[str, int] = {}
        """The mark that a symbol stands behind; a mark of punctuation goes with both."""
        if alphabet is Alphabet.CHARACTERS:
            spelled, pronounced = (dict(tables[name].items() - tables[other].items()) for name, other in _OTHER)
            pronounced = {as_phonemes(phoneme): number for phoneme, number in pronounced.items()}
            self._ids = {**self._ids, **pronounced}
            self._marks = dict.fromkeys(spelled, specials["<ch>"]) | dict.fromkeys(pronounced, specials["<ph>"])
        self._codebooks = codebooks
        self.null = self._positions([nothing])

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(self._ids)

    def prompt(self, symbols: str) -> Tensor:
        """Input positions, int64 (length, 1 + codebooks), of a passage."""
        said: list[int] = []
        mark = None
        for symbol in symbols:
            wanted = self._marks.get(symbol, mark or self._mark)
            said += [self._ids[symbol]] if wanted == mark else [wanted, self._ids[symbol]]
            mark = wanted
        return self._positions(said)

    def _positions(self, said: list[int]) -> Tensor:
        text = torch.tensor([self._begin, *said, self._end])[:, None]
        return torch.cat((text, torch.full((len(text), self._codebooks), ABSENT)), 1)


@dataclass(frozen=True, slots=True)
class Voice:
    """What all requests read with."""

    vocabulary: Vocabulary
    reading: Reading
    guided: bool


class TinyReader:
    """The front end of one request: units of text become passages as soon as they are certain; under granularity
    "none" once all text is there.

    A passage is a sentence or a clause, at most `MAX_SYMBOLS` long.
    """

    def __init__(self, voice: Voice, granularity: Granularity) -> None:
        self._voice = voice
        self._one_segment = granularity is Granularity.NONE
        self._cutter = TextCutter(clauses=granularity is Granularity.CLAUSE)
        self._finished = False
        self._segment = 0
        self._text: list[str] = []
        self._passages: deque[Passage] = deque()

    def push(self, text: str) -> None:
        self._cutter.push(text)
        if self._one_segment:
            self._text.append(text)

    def finish(self) -> None:
        self._finished = True
        self._cutter.finish()
        if self._one_segment:
            refuse_foreign("".join(self._text))  # One request: nothing of it is spoken.

    @property
    def exhausted(self) -> bool:
        return self._finished and not self._passages and not self._cutter

    def take(self) -> Passage | None:
        certain = self._finished or not self._one_segment
        while certain and not self._passages and (unit := self._cutter.take()) is not None:
            symbols = self._voice.reading(unit.text)
            if symbols:
                self._say(unit, symbols)
        return self._passages.popleft() if self._passages else None

    def _say(self, unit: Unit, symbols: str) -> None:
        pieces = list(split_phonemes(symbols, unit.ending, MAX_SYMBOLS))
        text = "".join(self._text) if self._one_segment else unit.text
        for number, piece in enumerate(pieces):
            ends = not self._one_segment and number == len(pieces) - 1
            self._passages.append(self._passage(piece, text, ends))
        self._segment += not self._one_segment

    def _passage(self, piece: Piece, text: str, ends_segment: bool) -> Passage:
        vocabulary = self._voice.vocabulary
        prompt = vocabulary.prompt(piece.phonemes)
        return Passage(
            prompts=[prompt, vocabulary.null] if self._voice.guided else [prompt],
            max_frames=max(MIN_FRAMES, FRAMES_PER_SYMBOL * len(piece.phonemes)),
            segment=self._segment,
            text=text,
            ends_segment=ends_segment,
            pause=pause_frames(piece.ending),
            usual_frames=USUAL_FRAMES_PER_SYMBOL * len(piece.phonemes),
        )


def pause_frames(ending: Ending) -> int:
    """At least one: a pause is where a passage ends."""
    return max(1, round(PAUSE_S[ending] * FRAME_RATE))
