"""Where a sentence or a clause ends: pure rules on a text that may still grow.

Each rule looks at one mark and answers with a `Cut`, with `NO`, or with `WAIT`: what decides it has not come. Any other
answer holds however the text goes on, so cutting it as it arrives equals cutting it whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from streamsynth.text.words import (
    ABBREVIATIONS,
    BEFORE_NUMBER,
    LONGEST_STARTER,
    NAME_SUFFIXES,
    NEVER_LAST,
    STARTERS,
    TITLES,
)


class Ending(Enum):
    """What ends a piece of text, and so how long a speaker pauses behind it."""

    SENTENCE = auto()
    SOFT = auto()  # a full stop that lower case follows
    COMMA = auto()
    SEMICOLON = auto()
    COLON = auto()
    DASH = auto()
    LENGTH = auto()  # nothing: the piece was cut because it is long


class Verdict(Enum):
    NO = auto()
    WAIT = auto()


@dataclass(frozen=True, slots=True)
class Cut:
    """A boundary: the piece ends before index `end`, which lies behind the space that follows the mark."""

    end: int
    ending: Ending


Answer = Cut | Verdict

LOOK_AHEAD = 32
"""No rule reads further than this behind the end of its cut."""

WRAPPED_LINE = 50
"""A line this long that no mark ends was broken by an editor, not by its author."""

MARK = re.compile(r"[.!?…。！？｡]+|[\n\u2028\u2029]|[,;:，；：、]+|—+|–|--+|(?<=\s)-(?=\s)")

_CLOSERS = re.compile(r"[\"'”’»›)\]}*_`」』）〉》]*")
_QUOTES = re.compile(r"[\"'”’»›)\]}」』）]")
_OPENERS = re.compile(r"[\"'“‘«‹(\[{*_`¿¡—–]{0,8}")
_SPACE = re.compile(r"\s*")
_LINE_END = re.compile(r"[\n\u2028\u2029]")
_NEXT_WORD = re.compile(rf"[A-Za-z]{{1,{LONGEST_STARTER + 1}}}")
_WORD_BEFORE = re.compile(r"[^\s\"“‘(\[{«*_]{1,40}\Z")
_DOTTED = re.compile(r"[A-Za-z]{1,2}(?:\.[A-Za-z]{1,2})+")
_LIST_NUMBER = re.compile(r"\s*[(\[]?(?:\d{1,3}|[A-Za-z]|[ivx]{2,4})")
_BULLETS = frozenset("-*•–—‣◦·+>#|")
_ENDED_LINE = re.compile(r"[.!?…。！？｡][\"'”’»›)\]}*_`」』）〉》]*\Z")
_OPEN_LINE = re.compile(r"[,;—–][\"'”’»›)\]}*_`]*\Z")
_SPEECH = re.compile(r"[^\W_]")
_CLAUSE_ENDINGS = {
    ",": Ending.COMMA,
    "，": Ending.COMMA,
    "、": Ending.COMMA,
    ";": Ending.SEMICOLON,
    "；": Ending.SEMICOLON,
    ":": Ending.COLON,
    "：": Ending.COLON,
}


def has_speech(text: str, end: int | None = None) -> bool:
    """Whether there is a letter or digit, of any script, before `end`."""
    return _SPEECH.search(text, 0, len(text) if end is None else end) is not None


def sentence_cut(text: str, mark: re.Match[str], *, complete: bool, column: int = 0) -> Answer:
    """Whether a sentence ends at `mark`, a match of MARK in `text`, which starts where the sentence starts.

    `complete`: nothing will follow `text`. `column`: how much of the line `text` starts on lies before it.
    """
    if mark[0] in "\n\u2028\u2029":
        return _line_cut(text, mark.start(), complete, column)
    if mark[0][0] not in ".!?…。！？｡":
        return Verdict.NO
    wait = Verdict.NO if complete else Verdict.WAIT
    closers = _CLOSERS.match(text, mark.end())
    assert closers is not None
    end = closers.end()
    if end == len(text):
        return wait
    if mark[0][-1] in "。！？｡":
        return Cut(end, Ending.SENTENCE)
    if not text[end].isspace():
        return Verdict.NO
    return _after_gap(text, mark, end, wait)


def _after_gap(text: str, mark: re.Match[str], end: int, wait: Verdict) -> Answer:
    """The rules for a mark with white space behind it."""
    quoted = _QUOTES.search(text, mark.end(), end) is not None
    goes_on = mark[0] == "." and not quoted and _goes_on(_word_before(text, mark), text, mark)
    plain = not quoted and not goes_on and "…" not in mark[0] and ".." not in mark[0]
    following = _skip_space(text, end)
    line_end = _LINE_END.search(text, end, following)
    if line_end and not plain:
        line_end = _LINE_END.search(text, line_end.end(), following)
    if line_end:
        return Cut(line_end.end(), Ending.SENTENCE)
    opened = _OPENERS.match(text, following)
    assert opened is not None
    if opened.end() == len(text):
        return wait
    first = text[opened.end()]
    if first.islower():
        return Cut(following, Ending.SOFT) if plain else Verdict.NO
    if goes_on:
        return _after_abbreviation(text, mark, opened.end(), following, wait)
    if first.isdigit() and mark[0] == "." and _word_before(text, mark).lower() in BEFORE_NUMBER:
        return Verdict.NO
    return Cut(following, Ending.SENTENCE)


def _word_before(text: str, mark: re.Match[str]) -> str:
    match = _WORD_BEFORE.search(text, max(0, mark.start() - 40), mark.start())
    return match[0] if match else ""


def _goes_on(word: str, text: str, mark: re.Match[str]) -> bool:
    """Whether a period behind `word` may be part of it: of a title, initial, abbreviation or list number."""
    return (
        (len(word) == 1 and word.isalpha())
        or word.lower() in ABBREVIATIONS
        or _is_title(word)
        or _DOTTED.fullmatch(word) is not None
        or _LIST_NUMBER.fullmatch(text, 0, mark.start()) is not None
    )


def _is_title(word: str) -> bool:
    return word[:1].isupper() and word.lower() in TITLES


def _after_abbreviation(text: str, mark: re.Match[str], first: int, following: int, wait: Verdict) -> Answer:
    """Whether the sentence ends behind a word that may go on, when no lower case letter follows."""
    word = _word_before(text, mark)
    lower = word.lower()
    if _is_title(word) or lower in NEVER_LAST or _LIST_NUMBER.fullmatch(text, 0, mark.start()):
        return Verdict.NO
    if lower == "etc":
        return Cut(following, Ending.SENTENCE)
    match = _NEXT_WORD.match(text, first)
    if match is None:
        return Verdict.NO
    if match.end() == len(text) and len(match[0]) <= LONGEST_STARTER:
        return wait
    if match[0].lower() not in STARTERS or (len(match[0]) == 1 and text[match.end()] == "."):
        return Verdict.NO
    return Cut(following, Ending.SENTENCE)


def _line_cut(text: str, start: int, complete: bool, column: int) -> Answer:
    """Whether a line end without a mark before it ends a sentence: blank lines, short lines and list items do."""
    wait = Verdict.NO if complete else Verdict.WAIT
    following = _skip_space(text, start)
    before = text[:start].rstrip()
    if _ENDED_LINE.search(before, max(0, len(before) - 40)):
        return Verdict.NO  # The mark's own rule has decided.
    blank_line = _LINE_END.search(text, start + 1, following)
    if blank_line:
        return Cut(blank_line.end(), Ending.SENTENCE)
    if following + 1 >= len(text):
        return wait
    if text[following] in _BULLETS and text[following + 1].isspace():
        return Cut(following, Ending.SENTENCE)
    if text[following].islower() or _OPEN_LINE.search(before, max(0, len(before) - 40)):
        return Verdict.NO
    line_start = max(before.rfind(mark) for mark in "\n\u2028\u2029")
    length = len(before) - line_start - 1 if line_start >= 0 else len(before) + column
    return Verdict.NO if length >= WRAPPED_LINE else Cut(following, Ending.SENTENCE)


def clause_cut(text: str, mark: re.Match[str], *, complete: bool) -> Answer:
    """Whether a clause ends at `mark`, which ends no sentence."""
    wait = Verdict.NO if complete else Verdict.WAIT
    kind = mark[0][0]
    if kind in ".!?…。！？｡\n\u2028\u2029":
        return Verdict.NO
    closers = _CLOSERS.match(text, mark.end())
    assert closers is not None
    end = closers.end()
    if end == len(text):
        return wait
    following = _skip_space(text, end)
    if following == len(text):
        return wait
    if kind in "，；：、":
        return Cut(end, _CLAUSE_ENDINGS[kind])
    if kind in "—–-":
        joined = following == end and kind != "—"
        return Verdict.NO if joined or mark.start() == 0 else Cut(following, Ending.DASH)
    if following == end or (text[mark.start() - 1 : mark.start()].isdigit() and text[following].isdigit()):
        return Verdict.NO
    if kind == "," and text[following].isupper():
        match = _NEXT_WORD.match(text, following)
        if match and match.end() == len(text) and len(match[0]) <= LONGEST_STARTER:
            return wait
        if match and match[0].lower() in NAME_SUFFIXES:
            return Verdict.NO
    return Cut(following, _CLAUSE_ENDINGS[kind])


def _skip_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None
    return match.end()
