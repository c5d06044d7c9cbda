"""What a prompt says of the world. Word order is free, and every value has synonyms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from streamsynth.models.tiny_world.vocabulary import (
    ADJECTIVES,
    HOURS,
    MOVES,
    NOUNS,
    NUMBERS,
    PLACES,
    SKIES,
    plural,
)

OPENINGS = ("", "", "", "", "", "", "", "a video of ", "show ", "now ", "there is ", "show me ", "then ")
PREPOSITIONS = ("over ", "above ", "in ", "across ", "near ", "")
THINGS = ("thing", "object", "figure", "shape")
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the and is are that which it they with of in on at over above across near by to from into there this"
        " these now then show me video make making be being turn turns turning while under sky scene picture its their",
    )
)


@dataclass(frozen=True)
class Reading:
    """What a prompt says: a value for each attribute that it mentions, and the words that mean nothing here. `several`:
    of things in the plural, whose number it does not say. `short`: a value stands alone for its phrase, as "left" for
    "moving left", which the model was not taught."""

    values: dict[str, str]
    unknown: tuple[str, ...]
    several: bool = False
    short: bool = False


def parse(prompt: str) -> Reading:
    """The longest phrases are read first, so that "a green meadow" says nothing of a colour; of two values of one
    attribute the one said last counts."""
    text = said = " ".join(filter(_says_something, _TOKEN.findall(prompt.lower())))
    found: list[tuple[int, str, str]] = []
    for pattern, attribute, value in _patterns():
        found += [(match.start(), attribute, value) for match in pattern.finditer(text)]
        text = pattern.sub(partial(_marked, _MARKS[attribute]), text)
    phrases = len(found)
    for pattern, attribute, value in _ALONE:
        found += [(match.start(), attribute, value) for match in pattern.finditer(text)]
        text = pattern.sub(partial(_marked, _MARKS[attribute]), text)
    short = len(found) > phrases
    found += [(match.start(), "count", "one") for match in _ONE_OBJECT.finditer(text)]
    values = {attribute: value for _, attribute, value in sorted(found)}
    left = (match for match in re.finditer(r"\S+", text) if not _READ.fullmatch(match.group()))
    unknown = (said[slice(*match.span())] for match in left if match.group() not in _known_fillers())
    several = "count" not in values and not _plurals().isdisjoint(said.split())
    return Reading(values, tuple(dict.fromkeys(unknown)), several, short)


def _says_something(token: str) -> bool:
    """Words do, and pictures among the letters; punctuation does not."""
    return len(token) > 1 or token.isalnum() or unicodedata.category(token) == "So"


def _marked(mark: str, match: re.Match[str]) -> str:
    return mark * len(match.group())


_MARKS = {"colour": "C", "shape": "S", "motion": "M", "background": "B", "time": "T", "weather": "W", "count": "N"}
"""What a phrase is replaced with once it is read: capitals, which the text has not."""

_ALONE = (
    (re.compile(r"(?<!\bthe )\bleft\b"), "motion", "left"),
    (re.compile(r"(?<!\bthe )\bright\b(?! now\b)"), "motion", "right"),
    (re.compile(r"\bclear\b"), "weather", "clear"),
)
"""Values that are in no phrase by themselves, where they can mean nothing else: "on the left" is a place."""

_READ = re.compile(r"[A-Z-]+")
_TOKEN = re.compile(r"\w+(?:-\w+)*|[^\w\s]")

_ONE_OBJECT = re.compile(rf"\ban? (?:[CM]+ )*(?:S+|{'|'.join(THINGS)})\b")


def in_words(values: Mapping[str, str]) -> str:
    """A prompt that says a value of every attribute: `parse` reads the same from it."""
    noun = NOUNS[values["shape"]][0]
    things = noun if values["count"] == "one" else plural(noun)
    colour, move, place, hour, sky = (
        table[values[name]][0] for name, table in _TABLES if name not in ("shape", "count")
    )
    return f"{values['count']} {colour} {things} {move} over {place}, {hour}, {sky}"


def known_words() -> frozenset[str]:
    """Every word of every phrase, and the fillers between them."""
    phrases = [phrase for _, table in _TABLES for words in table.values() for phrase in words]
    nouns = [form for words in NOUNS.values() for noun in words for form in (noun, plural(noun))]
    text = " ".join([*phrases, *nouns, *OPENINGS, *PREPOSITIONS]).lower()
    return frozenset(re.findall(r"[a-z0-9]+", text)) | _known_fillers()


@cache
def _known_fillers() -> frozenset[str]:
    return _FUNCTION_WORDS | {form for noun in THINGS for form in (noun, plural(noun))}


@cache
def _plurals() -> frozenset[str]:
    nouns = {noun for words in NOUNS.values() for noun in words} | set(THINGS)
    return frozenset(plural(noun) for noun in nouns) - nouns


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    phrases = [
        (phrase, attribute, value)
        for attribute, table in _TABLES
        for value, words in table.items()
        for phrase in _forms(attribute, words)
    ]
    ordered = sorted(set(phrases), key=lambda entry: (-len(entry[0]), entry))
    return tuple((re.compile(rf"\b{re.escape(phrase)}\b"), attribute, value) for phrase, attribute, value in ordered)


_TABLES = (
    ("colour", ADJECTIVES),
    ("shape", NOUNS),
    ("motion", MOVES),
    ("background", PLACES),
    ("time", HOURS),
    ("weather", SKIES),
    ("count", NUMBERS),
)


def _forms(attribute: str, words: Iterable[str]) -> Iterable[str]:
    for phrase in words:
        if attribute == "shape":
            yield plural(phrase)
        if attribute == "background":
            yield re.sub(r"^(a|the) ", "", phrase)
        elif attribute != "count" or phrase != "a":
            yield phrase
