"""Cuts text into sentences, or clauses, as it arrives."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from streamsynth.text.boundaries import (
    LOOK_AHEAD,
    MARK,
    Answer,
    Cut,
    Ending,
    Verdict,
    clause_cut,
    has_speech,
    sentence_cut,
)

MAX_UNIT_CHARACTERS = 400
"""A sentence longer than this is cut at a clause, else between words, else anywhere."""

MIN_CLAUSE_CHARACTERS = 10
"""A shorter clause is spoken with the next one."""

MAX_OPENING_CHARACTERS = 110
GOOD_OPENING_CHARACTERS = 64
MIN_OPENING_CHARACTERS = 20
"""How long the opening clause of an utterance may be, is best at most, and must be."""

_LAST_SPACE = re.compile(r".*\s", re.DOTALL)
_LINE_ENDS = "\n\u2028\u2029"
_JOINERS = "\u200d\ufe0e\ufe0f\u20e3"


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of text with the white space behind it; the units of a text, joined, are the text."""

    text: str
    ending: Ending


class TextCutter:
    """Yields the same units however the text is split on its way in, each once nothing that follows can change it.

    A unit is a sentence, or with `clauses` a clause, of at most MAX_UNIT_CHARACTERS. Each but the last has a letter or
    digit, unless white space or symbols fill it to that limit.
    """

    def __init__(self, *, clauses: bool = False) -> None:
        self._clauses = clauses
        self._text = ""
        self._start = 0
        self._column = 0
        self._resume = 0
        self._complete = False
        self._units: deque[Unit] = deque()

    def push(self, text: str) -> None:
        """Append text, byte-exact."""
        self._text = self._text[self._start :] + text
        self._start = 0
        self._cut()

    def finish(self) -> None:
        """No more text will come: what is left is the last unit."""
        self._complete = True
        self._cut()
        left = len(self._text) - self._start
        if left:
            self._take(Cut(left, Ending.SENTENCE))

    def __len__(self) -> int:
        """How many units are certain and not yet taken."""
        return len(self._units)

    def take(self) -> Unit | None:
        """The next unit, or None while none is certain."""
        return self._units.popleft() if self._units else None

    def _cut(self) -> None:
        while (cut := self._next_cut()) is not None:
            self._take(cut)

    def _take(self, cut: Cut) -> None:
        text = self._text[self._start : self._start + cut.end]
        self._start += cut.end
        line_start = max(text.rfind(mark) for mark in _LINE_ENDS) + 1
        self._column = len(text) - line_start + (0 if line_start else self._column)
        self._resume = 0
        self._units.append(Unit(text, cut.ending))

    def _next_cut(self) -> Cut | None:
        # No rule sees more than this, however much has come: what came at once is cut like what trickled.
        text = self._text[self._start : self._start + MAX_UNIT_CHARACTERS + LOOK_AHEAD]
        full = len(text) == MAX_UNIT_CHARACTERS + LOOK_AHEAD
        complete = self._complete and not full
        for mark in MARK.finditer(text, self._resume) if has_speech(text) else ():
            if mark.start() >= MAX_UNIT_CHARACTERS:
                break
            answer = self._ask(text, mark, complete)
            if answer is Verdict.WAIT:
                break
            if isinstance(answer, Cut) and has_speech(text, answer.end):
                return answer if answer.end <= MAX_UNIT_CHARACTERS else _forced_cut(text)
            self._resume = mark.end()
        return _forced_cut(text) if full or (complete and len(text) > MAX_UNIT_CHARACTERS) else None

    def _ask(self, text: str, mark: re.Match[str], complete: bool) -> Answer:
        answer = sentence_cut(text, mark, complete=complete, column=self._column)
        if answer is not Verdict.NO or not self._clauses:
            return answer
        answer = clause_cut(text, mark, complete=complete)
        if isinstance(answer, Cut) and len(text[: answer.end].strip()) < MIN_CLAUSE_CHARACTERS:
            return Verdict.NO
        return answer


def clause_cuts(sentence: str) -> Iterator[Cut]:
    """The places where a clause of a whole sentence ends, in order, and something is left to say."""
    for mark in MARK.finditer(sentence):
        cut = clause_cut(sentence, mark, complete=True)
        if isinstance(cut, Cut) and has_speech(sentence, cut.end) and has_speech(sentence[cut.end :]):
            yield cut


def opening(unit: Unit) -> tuple[Unit, ...]:
    """The first sentence of an utterance, in two if it is long: its first clause is heard while the rest is made."""
    text = unit.text
    if len(text) <= MAX_OPENING_CHARACTERS:
        return (unit,)
    ends = range(MIN_OPENING_CHARACTERS, min(MAX_OPENING_CHARACTERS, len(text) - MIN_OPENING_CHARACTERS) + 1)
    cuts = [cut for cut in clause_cuts(text) if cut.end in ends]
    if not cuts:
        return (unit,)
    cut = next((cut for cut in reversed(cuts) if cut.end <= GOOD_OPENING_CHARACTERS), cuts[0])
    return Unit(text[: cut.end], cut.ending), Unit(text[cut.end :], unit.ending)


def _forced_cut(text: str) -> Cut:
    """Where to cut a text that is too long: reads no more than the limit."""
    text = text[:MAX_UNIT_CHARACTERS]
    clauses = [cut for cut in clause_cuts(text) if cut.end > MAX_UNIT_CHARACTERS // 2]
    if clauses:
        return clauses[-1]
    space = _LAST_SPACE.match(text)
    if space and has_speech(text, space.end()):
        return Cut(space.end(), Ending.LENGTH)
    end = len(text)
    while end > 1 and _joins(text[end - 1]):
        end -= 1
    # The last character may carry marks that have not been seen; it goes with them.
    return Cut(end - 1 if end > 1 else len(text), Ending.LENGTH)


def _joins(character: str) -> bool:
    """Whether a character belongs to the one before it."""
    return (
        unicodedata.combining(character) != 0
        or character in _JOINERS
        or unicodedata.category(character) in ("Mn", "Me")
    )
