"""A small lexicon: its words are read as phonemes, within text that is otherwise read as characters."""

from __future__ import annotations

import gzip
from pathlib import Path

_MARKS = ",.!?;:"
_PLANE = 0xF0000


def as_phonemes(phonemes: str) -> str:
    """Each phoneme as a sign of its own, which no letter looks like."""
    return "".join(chr(_PLANE + ord(phoneme)) for phoneme in phonemes)


class Lexicon:
    """Words that sound the same in every sentence. Blocking to load."""

    def __init__(self, file: Path) -> None:
        """`file` holds lines of word, tab, phonemes, compressed."""
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        self._readings: dict[str, str] = dict(line.split("\t", 1) for line in lines)

    def __call__(self, text: str) -> str:
        """`text`, in small letters, with every word that is known as `as_phonemes`."""
        return " ".join(self._read(part) for word in text.split(" ") for part in self._parts(word))

    def _parts(self, word: str) -> list[str]:
        """A compound that is not known falls into words if its first and last are."""
        parts = word.split("-")
        whole = self._reading(word.strip(_MARKS)) is not None
        ends = (parts[0], parts[-1].strip(_MARKS))
        return [word] if whole or any(self._reading(end) is None for end in ends) else parts

    def _read(self, word: str) -> str:
        known = word.strip(_MARKS)
        reading = self._reading(known)
        return word if reading is None else word.replace(known, as_phonemes(reading))

    def _reading(self, word: str) -> str | None:
        reading = self._readings.get(word)
        if reading is not None or not word.endswith("'s"):
            return reading
        owner = self._readings.get(word[:-2])
        return None if owner is None else owner + possessive(owner)


def possessive(owner: str) -> str:
    """What 's sounds like behind the phonemes of its owner."""
    if owner[-1] in "szʃʒʧʤ":
        return "ᵻz"
    return "s" if owner[-1] in "ptkfθ" else "z"
