"""Prompts written from a scene, whole or in part, in free word order; the package's own reader reads them back."""

from __future__ import annotations

import random
from collections.abc import Collection

from streamsynth.models.tiny_world.reading import OPENINGS, PREPOSITIONS, THINGS
from streamsynth.models.tiny_world.vocabulary import ADJECTIVES, HOURS, MOVES, NOUNS, NUMBERS, PLACES, SKIES, plural
from train_tiny_world.scenes import Scene

_OBJECT = ("count", "colour", "shape", "motion")


def compose(scene: Scene, chosen: Collection[str], rng: random.Random) -> str:
    """A prompt that mentions exactly the chosen attributes."""
    phrases = [_object(scene, chosen, rng)] if any(name in chosen for name in _OBJECT) else []
    if "background" in chosen:
        phrases.append(rng.choice(PREPOSITIONS) + rng.choice(PLACES[scene.background]))
    if "time" in chosen:
        phrases.append(rng.choice(HOURS[scene.time]))
    if "weather" in chosen:
        phrases.append(rng.choice(SKIES[scene.weather]))
    if not phrases:
        raise ValueError("a prompt must mention something")
    if rng.random() < 0.5:
        rng.shuffle(phrases)
    text = rng.choice(OPENINGS) + phrases[0]
    for phrase in phrases[1:]:
        text += rng.choice((", ", ", ", " ", " ", " and ", " with ")) + phrase
    if rng.random() < 0.3:
        text = text[0].upper() + text[1:]
    return text + rng.choice(("", "", "", "."))


def _object(scene: Scene, chosen: Collection[str], rng: random.Random) -> str:
    """[number] [colour] noun [motion], the motion sometimes in front; "the" where the number is not to be said."""
    counted = "count" in chosen
    noun = rng.choice(NOUNS[scene.shape] if "shape" in chosen else THINGS)
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
