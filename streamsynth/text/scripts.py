"""Which writing system a word is in, so that a voice can refuse by name what it cannot say."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from streamsynth.text.characters import plain_letter

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_NAMES = {
    "CJK": "Chinese",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HANGUL": "Korean",
    "BOPOMOFO": "Chinese",
}


@dataclass(frozen=True, slots=True)
class ForeignWord:
    """A word with a letter of a script that is not wanted. `script` is its English name: "Cyrillic", "Chinese"."""

    word: str
    script: str


def script_of(character: str) -> str | None:
    """The script of a letter, by its English name; None for anything that is not a letter of one script.

    Letters that are a style of another, such as full-width or mathematical ones, count as the plain letter.
    """
    plain = unicodedata.normalize("NFKC", character)[:1] or character
    if unicodedata.category(plain) not in ("Lu", "Ll", "Lt", "Lo", "Mc", "Nl"):
        return None
    name = unicodedata.name(plain, "UNKNOWN").split(" ")[0].split("-")[0]
    return _NAMES.get(name, name.capitalize())


def foreign_word(text: str, scripts: frozenset[str], letters: frozenset[str]) -> ForeignWord | None:
    """The first word of `text` that a voice for these scripts cannot say, or None.

    That is one with a letter of another script, or with a letter that is neither in `letters` nor an ASCII letter with
    accents. A word is shown by its first 60 characters.
    """
    seen: set[str] = set()
    for match in _NOT_ASCII.finditer(text):
        character = match[0]
        if character in seen or character in letters:
            continue
        seen.add(character)
        script = script_of(character)
        if script is None:
            continue
        plain = unicodedata.normalize("NFKC", character)
        if script not in scripts or not all(plain_letter(part) or part in letters for part in plain if part.isalpha()):
            return ForeignWord(_word_at(text, match.start()), script)
    return None


def _word_at(text: str, index: int) -> str:
    start = end = index
    while start > 0 and not text[start - 1].isspace() and index - start < 20:
        start -= 1
    while end < len(text) and not text[end].isspace() and end - start < 40:
        end += 1
    return text[start:end]
