"""What is spoken under load: sentences of everyday lengths."""

from __future__ import annotations

from collections.abc import Sequence

SENTENCES: Sequence[str] = (
    "The next train to the coast leaves from platform four in about twelve minutes.",
    "I have put the kettle on, so sit down and tell me what happened.",
    "If the weather holds until Saturday, we could walk along the river to the old mill.",
    "Your order has been packed, and the driver will call you before he arrives.",
    "Nobody expected the library to stay open through the whole of that long winter.",
    "Turn left at the church, go past the bakery, and you will see the garden on your right.",
    "She read the letter twice, folded it carefully, and put it back into the drawer.",
    "Could you repeat the last part, please? The line was very noisy for a moment.",
)


def text_for(model: str, number: int) -> str:
    """The text of request `number`. A sine model speaks 50 ms a character: two to six seconds."""
    if model == "sine":
        return "x" * (40 + number * 37 % 80)
    return SENTENCES[number % len(SENTENCES)]
