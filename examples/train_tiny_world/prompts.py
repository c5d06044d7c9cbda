"""Prompts of the world: written from a scene, whole or in part, and read back.

Word order is free and every value has synonyms. A prompt need not mention everything: what it leaves out stays.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache

from train_tiny_world.attributes import ADJECTIVES, HOURS, MOVES, NOUNS, NUMBERS, PLACES, SKIES, Scene, plural

_OBJECT = ("count", "colour", "shape", "motion")
_OPENINGS = ("", "", "", "", "", "", "", "a video of ", "show ", "now ", "there is ", "show me ", "then ")
_PREPOSITIONS = ("over ", "above ", "in ", "across ", "near ", "")
_THINGS = ("thing", "object", "figure", "shape")
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the and is are that which it they with of in on at over above across near by to from into there this"
        " these now then show me video make making be being turn turns turning while under sky scene picture its their",
    )
)


def compose(scene: Scene, chosen: Collection[str], rng: random.Random) -> str:
    """A prompt that mentions exactly the chosen attributes."""
    phrases = [_object(scene, chosen, rng)] if any(name in chosen for name in _OBJECT) else []
    if "background" in chosen:
        phrases.append(rng.choice(_PREPOSITIONS) + rng.choice(PLACES[scene.background]))
    if "time" in chosen:
        phrases.append(rng.choice(HOURS[scene.time]))
    if "weather" in chosen:
        phrases.append(rng.choice(SKIES[scene.weather]))
    if not phrases:
        raise ValueError("a prompt must mention something")
    if rng.random() < 0.5:
        rng.shuffle(phrases)
    text = rng.choice(_OPENINGS) + phrases[0]
    for phrase in phrases[1:]:
        text += rng.choice((", ", ", ", " ", " ", " and ", " with ")) + phrase
    if rng.random() < 0.3:
        text = text[0].upper() + text[1:]
    return text + rng.choice(("", "", "", "."))


def _object(scene: Scene, chosen: Collection[str], rng: random.Random) -> str:
    """[number] [colour] noun [motion], the motion sometimes in front; "the" where the number is not to be said."""
    counted = "count" in chosen
    noun = rng.choice(NOUNS[scene.shape] if "shape" in chosen else _THINGS)
    if counted and scene.count != "one":
        noun = plural(noun)
    colour = rng.choice(ADJECTIVES[scene.colour]) if "colour" in chosen else ""
    move = rng.choice(MOVES[scene.motion]) if "motion" in chosen else ""
    in_front = " " not in move and rng.random() < 0.25
    words = [move if in_front else "", colour, noun]
    if move and not in_front:
        words.append(rng.choice(("", "", "", "that is ", "is ")) + move)
    rest = " ".join(word for word in words if word)
    number = rng.choice(NUMBERS[scene.count] if counted else ("the", "the", ""))
    if number == "a" and rest[0] in "aeiou":
        number = "an"
    return f"{number} {rest}".strip()


@dataclass(frozen=True)
class Reading:
    """What a prompt says: a value for each attribute that it mentions, and the words that mean nothing here."""

    values: dict[str, str]
    unknown: tuple[str, ...]


def parse(prompt: str) -> Reading:
    """The longest phrases are read first, so that "a green meadow" says nothing of a colour; of two values of one
    attribute the one said last counts."""
    text = " ".join(re.findall(r"[a-z0-9-]+", prompt.lower()))
    found: list[tuple[int, str, str]] = []
    for pattern, attribute, value in _patterns():
        found += [(match.start(), attribute, value) for match in pattern.finditer(text)]
        text = pattern.sub(lambda match, mark=_MARKS[attribute]: mark * len(match.group()), text)
    found += [(match.start(), "count", "one") for match in _ONE_OBJECT.finditer(text)]
    values = {attribute: value for _, attribute, value in sorted(found)}
    unknown = (word for word in re.findall(r"[a-z0-9-]+", text) if word not in _known_fillers())
    return Reading(values, tuple(dict.fromkeys(unknown)))


_MARKS = {"colour": "C", "shape": "S", "motion": "M", "background": "B", "time": "T", "weather": "W", "count": "N"}
"""What a phrase is replaced with once it is read: capitals, which the text has not."""

_ONE_OBJECT = re.compile(rf"\ban? (?:[CM]+ )*(?:S+|{'|'.join(_THINGS)})\b")


def known_words() -> frozenset[str]:
    """Every word of every phrase, and the fillers between them."""
    phrases = [phrase for _, table in _TABLES for words in table.values() for phrase in words]
    nouns = [form for words in NOUNS.values() for noun in words for form in (noun, plural(noun))]
    text = " ".join([*phrases, *nouns, *_OPENINGS, *_PREPOSITIONS]).lower()
    return frozenset(re.findall(r"[a-z0-9]+", text)) | _known_fillers()


@cache
def _known_fillers() -> frozenset[str]:
    return _FUNCTION_WORDS | {form for noun in _THINGS for form in (noun, plural(noun))}


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
