"""Text to what the talker reads: phonemes by hibari's reader, or characters, with the lexicon's words as phonemes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from streamsynth.errors import invalid_value
from streamsynth.models.hibari.phonemes import Phonemizer
from streamsynth.models.hibari.reading import spell_out
from streamsynth.models.tiny_speech.lexicon import Lexicon
from streamsynth.models.tiny_speech.places import weights_folder
from streamsynth.text.boundaries import has_speech
from streamsynth.text.normal import normalise
from streamsynth.text.spelling import plain_characters, spell_acronyms

Reading = Callable[[str], str]
"""A unit of text to symbols of the talker's alphabet, none if it has no sound. Raises UNSUPPORTED_LANGUAGE."""


class Alphabet(StrEnum):
    """What the talker reads: each has its mark in the prompt, and its table in the vocabulary."""

    PHONEMES = "phonemes"
    CHARACTERS = "characters"

    @classmethod
    def named(cls, name: str) -> Alphabet:
        """Raises INVALID_VALUE."""
        if name not in [*cls]:
            raise invalid_value("alphabet", name, "one of: " + ", ".join(cls))
        return cls(name)


def open_reading(alphabet: Alphabet, symbols: frozenset[str]) -> Reading:
    """Loads the pronunciations if there are any to know; blocking."""
    if alphabet is Alphabet.CHARACTERS:
        lexicon = Lexicon(weights_folder() / "lexicon.tsv.gz")
        return lambda text: lexicon(_characters(text))
    phonemizer = Phonemizer(symbols)
    return lambda text: phonemizer(normalise(spell_out(text)))


def _characters(text: str) -> str:
    text = plain_characters(spell_acronyms(normalise(spell_out(text))))
    return text if has_speech(text) else ""
