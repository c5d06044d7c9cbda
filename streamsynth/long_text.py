"""Text of any length as a sequence of utterances, each of which may only have so much text and audio. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from streamsynth.text.cutter import TextCutter

UTTERANCE_CHARACTERS = 1500
"""About two minutes of speech; the utterance ends with the sentence in which it reaches this."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to send now; `ends_utterance`: the next piece belongs to the next one."""

    text: str
    ends_utterance: bool = False


class UtteranceCutter:
    """Passes text on as it comes, and says where utterances end. The pieces, joined, are the text.

    Only in the last sentence of an utterance is text held back, until it is certain where that sentence ends. Where the
    utterances end does not depend on how the text is split on its way in.
    """

    def __init__(self, characters: int = UTTERANCE_CHARACTERS) -> None:
        self._characters = characters
        self._cutter = TextCutter()
        self._ends: deque[int] = deque()
        self._certain = 0
        self._start = 0
        self._sent = 0
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        self._cutter.push(text)
        while (unit := self._cutter.take()) is not None:
            self._certain += len(unit.text)
            self._ends.append(self._certain)
        self._held += text
        pieces: list[Piece] = []
        while self._held and (piece := self._next()) is not None:
            pieces.append(piece)
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back: the rest of the last utterance."""
        rest, self._held = self._held, ""
        return [Piece(rest)] if rest else []

    def _next(self) -> Piece | None:
        free = self._start + self._characters - self._sent
        if free > 0:
            return self._take(min(free, len(self._held)))
        while self._ends and self._ends[0] < self._sent:
            self._ends.popleft()
        if not self._ends:
            return None
        piece = self._take(self._ends.popleft() - self._sent)
        self._start = self._sent
        return Piece(piece.text, ends_utterance=True)

    def _take(self, count: int) -> Piece:
        text, self._held = self._held[:count], self._held[count:]
        self._sent += count
        return Piece(text)
