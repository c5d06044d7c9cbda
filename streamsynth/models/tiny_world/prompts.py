"""Prompts are read before they are encoded: what the model was never taught would show anything at all, and what a
prompt leaves out would wander."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from streamsynth.errors import invalid_value
from streamsynth.models.tiny_world.reading import Reading, in_words, parse
from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from streamsynth.models.wan.prompts import PromptEncoder

_SHOWN = "; ".join(" ".join(values) for values in ATTRIBUTES.values())
"""What is said where a prompt is refused; each of these words has synonyms."""


class WorldPrompts:
    """Raises INVALID_VALUE for words that are not known, and for a prompt that says nothing of the world."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder = encoder

    def in_full(self, prompt: str, before: str | None, seed: int) -> str:
        """What a video's first prompt leaves out, the seed chooses; what a later one leaves out stays."""
        said = _checked(prompt).values
        if len(said) == len(ATTRIBUTES):
            return prompt
        rng = random.Random(seed)
        chosen = {name: rng.choice(values) for name, values in ATTRIBUTES.items()}
        return in_words((chosen if before is None else parse(before).values) | said)

    def encode(self, prompts: Sequence[str]) -> Tensor:
        for prompt in prompts:
            _checked(prompt)
        return self._encoder.encode(prompts)


def _checked(prompt: str) -> Reading:
    reading = parse(prompt)
    if reading.unknown:
        raise invalid_value("prompt", ", ".join(reading.unknown), f"in words that this model knows: {_SHOWN}")
    if not reading.values:
        raise invalid_value("prompt", prompt, f"about what this model shows: {_SHOWN}")
    return reading
