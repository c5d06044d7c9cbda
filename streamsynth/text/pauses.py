"""How long a voice rests behind a piece of text, where the voice itself does not know what follows."""

from __future__ import annotations

from collections.abc import Mapping

from streamsynth.text.boundaries import Ending

PAUSE_S: Mapping[Ending, float] = {
    Ending.SENTENCE: 0.75,
    Ending.SOFT: 0.35,
    Ending.COMMA: 0.375,
    Ending.SEMICOLON: 0.45,
    Ending.COLON: 0.35,
    Ending.DASH: 0.35,
    Ending.LENGTH: 0.025,
}
"""Behind a sentence about what hibari leaves there; inside one about what it makes at such a mark itself."""
