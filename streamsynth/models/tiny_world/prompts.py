"""Prompts are read before they are encoded: what the model was never taught would show anything at all, and what a
prompt leaves out would wander."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.models.tiny_world.reading import Reading, in_words, parse
from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES, COUNTS
from streamsynth.models.wan.prompts import PromptEncoder

_SHOWN = "; ".join(" ".join(values) for values in ATTRIBUTES.values())
"""What is said where a prompt is refused; each of these words has synonyms."""


class WorldPrompts:
    """Raises INVALID_VALUE for words that are not known, and for a prompt that says nothing of the world."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder = encoder

    def in_full(self, prompt: str, before: str | None, seed: int) -> str:
        """What a video's first prompt leaves out, the seed chooses; what a later one leaves out stays."""
        reading = _checked(prompt)
        if len(reading.values) == len(ATTRIBUTES) and not reading.short:
            return prompt
        rng = random.Random(seed)
        chosen = {name: rng.choice(values) for name, values in ATTRIBUTES.items()}
        full = (chosen if before is None else parse(before).values) | reading.values
        if reading.several and full["count"] == "one":
            full["count"] = rng.choice(COUNTS[1:])
        return in_words(full)

    def encode(self, prompts: Sequence[str]) -> Tensor:
        for prompt in prompts:
            _checked(prompt)
        return self._encoder.encode(prompts)


def _checked(prompt: str) -> Reading:
    reading = parse(prompt)
    if reading.unknown:
        raise StreamSynthError(ErrorCode.INVALID_VALUE, _unknown(reading.unknown), param="prompt")
    if not reading.values:
        raise invalid_value("prompt", prompt, f"about what this model shows: {_SHOWN}")
    return reading


def _unknown(words: Sequence[str]) -> str:
    """A prompt may be long: as much of it is shown as of any refused value."""
    shown = repr(", ".join(words))
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return f"prompt says {shown}, which this model does not know; it knows: {_SHOWN}"
