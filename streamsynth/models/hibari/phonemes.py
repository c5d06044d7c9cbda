"""Text to hibari's phonemes, in pieces that the network takes at once."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from hibari.g2p import ASSETS, G2P
from hibari.g2p.oov import OOV

from streamsynth.models.hibari.reading import spell_out
from streamsynth.text.boundaries import Ending

LONGEST_UNKNOWN_WORD = 24
"""What the network for unknown words reads of one; hibari drops the rest, here the word is read in parts."""

_REMEMBERED_WORDS = 4096
_SOUNDS = re.compile(r"[^\W\d_ˈˌːʰʲᵝ̃]")
# hibari spends a second on a long run of the other signs, and says nothing.
_HEARD = re.compile(r"[^\s\[\](){}'\"`*_/\\|.,;:!?…“”‘’–—-]")
_PAUSE = re.compile(r"[;:,.!?—…][”)\"]*\s")
_DIGIT = re.compile(r"\d")
_ENDINGS = {",": Ending.COMMA, ";": Ending.SEMICOLON, ":": Ending.COLON, "—": Ending.DASH}


@dataclass(frozen=True, slots=True)
class Piece:
    """Phonemes that are spoken in one go, and what ends them."""

    phonemes: str
    ending: Ending


def phoneme_ids() -> dict[str, int]:
    """The network's alphabet."""
    with open(os.path.join(ASSETS, "vocab.json"), encoding="utf-8") as file:
        ids: dict[str, int] = json.load(file)
    return ids


class Phonemizer:
    """hibari's grapheme-to-phoneme conversion with a bounded memory of unknown words."""

    def __init__(self, alphabet: Container[str]) -> None:
        self._alphabet = alphabet
        self._read_part = functools.lru_cache(_REMEMBERED_WORDS)(OOV())
        self._g2p = G2P(oov=self._read_unknown_word)

    def __call__(self, text: str) -> str:
        """Phonemes in the network's alphabet; empty if `text` has no sound. Raises UNSUPPORTED_LANGUAGE."""
        text = spell_out(text)
        if not _HEARD.search(text):
            return ""
        try:
            phonemes: str = self._g2p(text)
        except (IndexError, ValueError):
            # Its number reader fails above decillions and on some mixtures of digits and letters.
            phonemes = self._g2p(_DIGIT.sub(r" \g<0> ", text))
        phonemes = "".join(phoneme for phoneme in phonemes if phoneme in self._alphabet)
        return phonemes if _SOUNDS.search(phonemes) else ""

    def _read_unknown_word(self, word: str) -> str:
        parts = (word[at : at + LONGEST_UNKNOWN_WORD] for at in range(0, len(word), LONGEST_UNKNOWN_WORD))
        return " ".join(filter(None, map(self._read_part, parts)))


def split_phonemes(phonemes: str, ending: Ending, limit: int) -> Iterator[Piece]:
    """Pieces of about equal length, at most `limit` each, cut at pauses, else between words, else anywhere."""
    while len(phonemes) > limit:
        target = -(-len(phonemes) // -(-len(phonemes) // limit))
        end = _best_cut(phonemes, target, limit)
        piece = phonemes[:end].rstrip()
        yield Piece(piece, _ENDINGS.get(piece.rstrip('”)"')[-1:], Ending.LENGTH))
        phonemes = phonemes[end:].lstrip()
    yield Piece(phonemes, ending)


def _best_cut(phonemes: str, target: int, limit: int) -> int:
    head = phonemes[: limit + 1]
    pauses = [match.end() for match in _PAUSE.finditer(head) if match.end() > target // 2]
    spaces = [at + 1 for at, phoneme in enumerate(head) if phoneme == " " and at > target // 2]
    return min(pauses or spaces or [limit], key=lambda end: abs(end - target))
