"""Prompts are read before they are encoded: what the model was never taught would show anything at all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from streamsynth.errors import invalid_value
from streamsynth.models.tiny_world.reading import parse
from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from streamsynth.models.wan.prompts import PromptEncoder

_SHOWN = "; ".join(" ".join(values) for values in ATTRIBUTES.values())
"""What is said where a prompt is refused; each of these words has synonyms."""


class WorldPrompts:
    """Raises INVALID_VALUE for words that are not known, and for a prompt that says nothing of the world."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder = encoder

    def encode(self, prompts: Sequence[str]) -> Tensor:
        for prompt in prompts:
            _check(prompt)
        return self._encoder.encode(prompts)


def _check(prompt: str) -> None:
    reading = parse(prompt)
    if reading.unknown:
        raise invalid_value("prompt", ", ".join(reading.unknown), f"in words that this model knows: {_SHOWN}")
    if not reading.values:
        raise invalid_value("prompt", prompt, f"about what this model shows: {_SHOWN}")
