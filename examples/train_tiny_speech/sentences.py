"""Cuts raw text into sentences that a voice can read aloud as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SPOKEN_TITLES = {"Mr.": "Mister", "Mrs.": "Missus", "Dr.": "Doctor", "Ms.": "Miz", "St.": "Saint"}
_ALLOWED = re.compile(r"[A-Za-z',.?!;:\- ]+")
_UNSPEAKABLE = re.compile(
    r"\b[A-Z]{2,}\b|[a-z][A-Z]"  # acronyms and joined words
    r"|\b(etc|vs|Jr|Sr|Esq|Capt|Col|Gen|Lt|Prof|vol|cf|i\.e|e\.g)\."
    r"|\b[A-Za-z]\.(?=.)|(^|\s)[b-hj-zB-HJ-NP-Z](\s|$)"  # initials and lone letters
    r"|- | -|(.)\3\3"
)
_MAX_CHARACTERS = 150
_MAX_WORD = 18


def sentences(text: str) -> Iterator[str]:
    """Readable sentences of a running text, cleaned; the rest is left out."""
    for title, spoken in _SPOKEN_TITLES.items():
        text = text.replace(title, spoken)
    for piece in re.split(r"(?<=[.?!])\s+(?=[A-Z])", re.sub(r"\s+", " ", text)):
        cleaned = clean(piece)
        if is_readable(cleaned):
            yield finished(cleaned)


def clean(text: str) -> str:
    text = re.sub("[\u2018\u2019]", "'", text)
    text = re.sub("[\u201c\u201d\"_]|``|''", "", text)
    text = re.sub("\u2014|\u2013|--", ", ", text)
    text = re.sub(r"\(([^)]*)\)", r", \1,", text.replace("\u2026", "."))
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\s+([,.?!;:])", r"\1", text)
    text = re.sub(r"([,;:])[,;:.\s]*([,.?!])", r"\2", text)
    text = re.sub(r"([,;:])(?=[A-Za-z])", r"\1 ", text)
    return re.sub(r"([.?!])[.?!]+", r"\1", text).strip(" ,;:-'")


def is_readable(sentence: str, words: tuple[int, int] = (3, 24)) -> bool:
    parts = sentence.split()
    return (
        words[0] <= len(parts) <= words[1]
        and len(sentence) <= _MAX_CHARACTERS
        and max(map(len, parts)) <= _MAX_WORD
        and _ALLOWED.fullmatch(sentence) is not None
        and _UNSPEAKABLE.search(sentence) is None
    )


def finished(sentence: str) -> str:
    sentence = sentence[0].upper() + sentence[1:]
    return sentence if sentence[-1] in ".?!" else sentence + "."
