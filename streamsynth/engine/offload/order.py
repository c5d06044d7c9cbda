"""The order in which a pass enters its blocks: declared, or learned from the first pass; checked in every one after."""

from __future__ import annotations

from collections.abc import Sequence

from streamsynth.errors import ErrorCode, StreamSynthError


class PassOrder:
    """Blocks by number; `names` are what errors call them. While it is not `known`, the numbers are only a guess: a
    pass that enters all blocks makes it known when the next one begins."""

    def __init__(self, names: Sequence[str], *, known: bool, may_skip: bool) -> None:
        self.names = names
        self.known = known
        self._may_skip = may_skip
        self._order = list(range(len(names)))
        self._place = {block: place for place, block in enumerate(self._order)}
        self._seen: list[int] = []
        self._last: int | None = None

    def enter(self, block: int) -> None:
        """Raises INTERNAL_ERROR, and changes nothing, for a block that is not the next one nor the first."""
        if not self.known:
            self._learn(block)
        elif block != self._order[0]:
            self._check(block)
        self._last = block

    def next_after(self, block: int, count: int, *, first: int) -> list[int]:
        """The blocks that a pass, and the pass after it, will enter; those below `first` left out."""
        order = [each for each in self._order if each >= first]
        place = self._place[block]
        following = [each for each in order if self._place[each] > place]
        wanted = following + [each for each in order if self._place[each] < place]
        return wanted[:count]

    def _check(self, block: int) -> None:
        place = self._place[block]
        expected = 0 if self._last is None else self._place[self._last] + 1
        if place == expected or (self._may_skip and place > expected):
            return
        awaited = self.names[self._order[expected]] if expected < len(self._order) else self.names[self._order[0]]
        raise StreamSynthError(
            ErrorCode.INTERNAL_ERROR,
            f"block {self.names[block]} was entered where {awaited} is next: offloaded blocks run in one order",
        )

    def _learn(self, block: int) -> None:
        if block in self._seen:
            if block != self._seen[0] and not self._may_skip:
                raise StreamSynthError(
                    ErrorCode.INTERNAL_ERROR,
                    f"block {self.names[block]} was entered twice in a pass: it cannot be offloaded",
                )
            self._settle()
        if not self.known:
            self._seen.append(block)

    def _settle(self) -> None:
        """A pass has ended. It teaches the order if it entered every block; else it is a better guess."""
        self._order = self._seen + [block for block in self._order if block not in self._seen]
        self._place = {block: place for place, block in enumerate(self._order)}
        self.known = len(self._seen) == len(self.names)
        self._seen = []
