"""Guessing what a text says next from what it has said: prompt lookup.

The longest ending that occurred before is looked up, and what followed it then is the guess. A pass over several
positions costs little more than over one where reading the weights is what takes the time; what the model does not draw
itself is dropped, so a guess decides how long a text takes and never what it says. (Saxena 2023.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamsynth.errors import invalid_value


@dataclass(frozen=True, kw_only=True, slots=True)
class Guessing:
    """`most` tokens are guessed for a text at once, from an ending of `shortest` to `longest` tokens; a step computes
    at most `positions` of all texts, guesses included. `most` 0 guesses nothing."""

    most: int
    shortest: int = 1
    longest: int = 3
    positions: int = 16

    def __post_init__(self) -> None:
        if self.most < 0:
            raise invalid_value("guesses", self.most, "0 or more")
        if not 1 <= self.shortest <= self.longest:
            raise invalid_value("shortest", self.shortest, f"from 1 to {self.longest}, the longest")

    def each(self, texts: int) -> int:
        """How many tokens may be guessed for each of so many texts."""
        return max(0, min(self.most, self.positions // max(1, texts) - 1))


class Lookup:
    """The tokens of one text, and where each of its endings was last followed by something."""

    def __init__(self, guessing: Guessing, tokens: Iterable[int]) -> None:
        self._sizes = range(guessing.longest, guessing.shortest - 1, -1)
        self._tokens: list[int] = []
        self._followed: dict[tuple[int, ...], int] = {}
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        place = len(self._tokens)
        for size in self._sizes:
            if size <= place:
                self._followed[tuple(self._tokens[place - size :])] = place
        self._tokens.append(token)

    def guess(self, count: int) -> list[int]:
        """At most so many tokens; none if no ending is known. A guess that reaches the end of the text goes on with
        itself, as a text that repeats itself does."""
        said = list(self._tokens)
        for size in self._sizes:
            place = self._followed.get(tuple(said[-size:]))
            if place is not None and size <= len(said):
                for number in range(count):
                    said.append(said[place + number])
                return said[len(self._tokens) :]
        return []
