"""Words as a model reads them that knows the letters of the alphabet and no pronunciations."""

from __future__ import annotations

import re
from string import ascii_uppercase

from streamsynth.text.characters import fold

_NAMES = "ay bee see dee ee eff jee aitch eye jay kay ell em en oh pee cue ar ess tee you vee double-you ex why zee"
_LETTERS = dict(zip(ascii_uppercase, _NAMES.split(), strict=True))

_ACRONYM_WORDS = (
    "AIDS ASCII FIFA GIF JPEG LASER MODEM NAFTA NASA NATO OPEC PIN RADAR RAM ROM SCUBA SIM SWAT UNESCO UNICEF"
)
_PRONOUNCED = frozenset(_ACRONYM_WORDS.split())
"""Acronyms that are read as words."""

_ACRONYM = re.compile(r"(?<![\w.])(?:[A-Z]\.){2,}(?!\w)|\b[A-Z]{2,5}(?=s?\b)|\b[B-HJ-Z]\b(?!')")
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")
_WORD = re.compile(r"\b[A-Za-z]{2,}\b")
_STOPS = str.maketrans({"—": ", ", "–": ", ", "…": ".", "(": ", ", ")": ", ", "“": "", "”": "", "’": "'", "‘": "'"})
_NOT_KNOWN = re.compile(r"[^a-z ,.!?;:'-]")
_SPACES = re.compile(r"\s+")
_STRAY = re.compile(r"(?<![a-z])['-]+|['-]+(?![a-z])")
_SPACE_BEFORE_MARK = re.compile(r"\s+(?=[,.;:!?])")
_MARKS = re.compile(r"([,.;:!?])[,.;:!?]+")


def spell_acronyms(text: str) -> str:
    """Acronyms and single letters by the names of their letters; text that is all capitals is left alone."""
    words = _WORD.findall(text)
    if len(words) > 1 and len(_CAPITALS.findall(text)) * 2 > len(words):
        return text
    return _ACRONYM.sub(_spell, text)


def _spell(match: re.Match[str]) -> str:
    if match[0] in _PRONOUNCED:
        return match[0]
    named = " ".join(_LETTERS[letter] for letter in match[0] if letter != ".")
    ends = match[0].endswith(".") and match.end() == len(match.string)
    return f"{named}." if ends else named


def plain_characters(text: str) -> str:
    """Lower-case letters, spaces and `, . ! ? ; : - '`: what has no such form is left out."""
    text = fold(text.translate(_STOPS), frozenset()).lower()
    text = _STRAY.sub(" ", _NOT_KNOWN.sub(" ", text))
    text = _SPACE_BEFORE_MARK.sub("", _SPACES.sub(" ", text))
    return _MARKS.sub(r"\1", text).strip(" ,;:")
