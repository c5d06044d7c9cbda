"""The cutter: the same units however the text arrives, whole atoms, nothing lost, nothing unbounded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.text.boundaries import Ending
from streamsynth.text.cutter import (
    GOOD_OPENING_CHARACTERS,
    MAX_OPENING_CHARACTERS,
    MAX_UNIT_CHARACTERS,
    MIN_CLAUSE_CHARACTERS,
    MIN_OPENING_CHARACTERS,
    TextCutter,
    Unit,
    opening,
)


def cut(*pieces: str, clauses: bool = False) -> list[Unit]:
    cutter = TextCutter(clauses=clauses)
    units: list[Unit] = []
    for piece in pieces:
        cutter.push(piece)
        units += iter(cutter.take, None)
    cutter.finish()
    return units + list(iter(cutter.take, None))


def sentences(text: str) -> list[str]:
    return [unit.text for unit in cut(text)]


ONE_SENTENCE = [
    "It was 98.6 degrees.",
    "Mount Everest is 8,848.86 m high.",
    "We ship v2.0.1 today.",
    "Use a tool, e.g. this one, or i.e. that.",
    "Dr. Smith and Mrs. J. K. Rowling met Prof. Brown.",
    "See https://example.com/a.b?c=d.e and www.example.org now",
    "The host is 192.168.0.1 on port 80.",
    "Write to first.last@example.com today!",
    "Es sind 22,1 Grad.",
    "Wait... what?",
    "Well… maybe.",
    "The meeting is at 7:30 tonight.",
    "The U.S. troops left.",
    "He spoke to the U.S. President.",
    "She has a Ph.D. in physics.",
    'He said "Stop!" and ran.',
    "“Why?” she asked.",
    "No. 5 is alive.",
    "See Fig. 3 and p. 12, vol. 2.",
    "Meet me on Jan. 5, 2024, on Main St. Paul is late.",
    "Smith vs. Jones et al. came at 5 a.m. every day.",
    "1. First item",
    "ii. Second item",
    "Mr. and Mrs. Brown, Jr. came.",
    "Is it (really?) so?",
    "J. R. R. Tolkien wrote it.",
    "A line that an editor has wrapped, since it is as wide as this,\nHere it goes on.",
    "A short line\nthat goes on in lower case.",
    "Roses are red,\nViolets are blue.",
    "The file is archive.tar.gz, not a.zip.",
    "He earned $3.5 million in Q1.",
    "Samuel L. Jackson stars.",
]

SEVERAL = {
    "It was 98.6. Then 99.": ["It was 98.6. ", "Then 99."],
    "He lives in the U.S. He likes it.": ["He lives in the U.S. ", "He likes it."],
    "We left at 7:30 p.m. The rain fell.": ["We left at 7:30 p.m. ", "The rain fell."],
    "Really?! Yes!!! No... Fine.": ["Really?! ", "Yes!!! ", "No... ", "Fine."],
    '"Go." Then he went. (He ran.) End.': ['"Go." ', "Then he went. ", "(He ran.) ", "End."],
    "hello there. how are you? i am fine": ["hello there. ", "how are you? ", "i am fine"],
    "It was 1990. In 1991. No. I said no.": ["It was 1990. ", "In 1991. ", "No. ", "I said no."],
    "So do I. He left. Plan B. Then C.": ["So do I. ", "He left. ", "Plan B. ", "Then C."],
    "1. First\n2. Second\n": ["1. First\n", "2. Second\n"],
    "Shopping:\n- milk\n- eggs": ["Shopping:\n", "- milk\n", "- eggs"],
    "A title\n\nA paragraph.\n\nMore": ["A title\n\n", "A paragraph.\n", "\nMore"],
    "Dr.\n\nSmith": ["Dr.\n\n", "Smith"],
    "Fine 🙂. Good. 🙂 Bye": ["Fine 🙂. ", "Good. ", "🙂 Bye"],
    "你好。世界！Hello.": ["你好。", "世界！", "Hello."],
    "**Bold.** _Italic!_ Plain.": ["**Bold.** ", "_Italic!_ ", "Plain."],
    "Apples, pears, etc. Tim ate them.": ["Apples, pears, etc. ", "Tim ate them."],
    "  Hello.  World.  ": ["  Hello.  ", "World.  "],
    "One.\r\nTwo.\r\n": ["One.\r\n", "Two.\r\n"],
}


@pytest.mark.parametrize("text", ONE_SENTENCE)
def test_periods_commas_and_colons_inside_atoms_end_no_sentence(text: str) -> None:
    """S59, S60."""
    assert sentences(text) == [text]


@pytest.mark.parametrize("text", SEVERAL)
def test_sentences_end_where_a_reader_would_end_them(text: str) -> None:
    """S59."""
    assert sentences(text) == SEVERAL[text]


@pytest.mark.parametrize("clauses", [False, True])
@pytest.mark.parametrize("text", [*ONE_SENTENCE, *SEVERAL, " ".join(ONE_SENTENCE), "\n".join(SEVERAL)])
def test_one_character_at_a_time_gives_the_units_of_the_whole(text: str, clauses: bool) -> None:
    """S59, S60."""
    assert cut(*text, clauses=clauses) == cut(text, clauses=clauses)


@pytest.mark.parametrize("pieces", [("Todo ", "listo."), ("Todo", " ", "listo."), (" ", "a", " "), ("", "a", "")])
def test_text_is_joined_byte_exact(pieces: tuple[str, ...]) -> None:
    """S62."""
    assert "".join(unit.text for unit in cut(*pieces)) == "".join(pieces)


@pytest.mark.parametrize("text", ["", " ", ".", "🙂", "...\n\n !?"])
def test_text_without_a_word_is_at_most_one_unit(text: str) -> None:
    """S64."""
    assert sentences(text) == ([text] if text else [])


_CHARACTERS = "abzAZ059 .,;:!?…—–-\n\r\t\"'”“()[]*_🙂é你。！，、\u0301\u200d\u2028"
_WORDS = (". ", "\n\n", " - ", "Dr. ", "e.g. ", "U.S. ", "J. ", "etc. ", "No. ", "The ", "I ", "it ", "... ", ", Jr. ")
_NUMBERS = ("7:30 ", "3.14", "22,1", "1. ", "Jan. 5, 2024")
_ATOMS = st.sampled_from([*_CHARACTERS, *_WORDS, *_NUMBERS])
_TEXTS = st.one_of(
    st.lists(_ATOMS, max_size=60).map("".join),
    st.text(max_size=80),
    st.tuples(st.lists(_ATOMS, max_size=6).map("".join), st.integers(60, 200)).map(lambda pair: pair[0] * pair[1]),
)


@settings(max_examples=300, deadline=None)
@given(text=_TEXTS, clauses=st.booleans(), data=st.data())
def test_any_split_gives_the_same_units_and_they_join_to_the_text(
    text: str, clauses: bool, data: st.DataObject
) -> None:
    """S59, S60, S62: a unit is certain when it is given; nothing that follows changes it."""
    whole = cut(text, clauses=clauses)
    assert "".join(unit.text for unit in whole) == text
    assert all(0 < len(unit.text) <= MAX_UNIT_CHARACTERS for unit in whole)
    bounds = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[start:end] for start, end in zip([0, *bounds], [*bounds, len(text)], strict=True)]
    assert cut(*pieces, clauses=clauses) == whole
    assert cut(*text[:500], text[500:], clauses=clauses) == whole


def test_a_sentence_is_given_as_soon_as_the_next_one_shows() -> None:
    cutter = TextCutter()
    cutter.push("Hello there.")
    assert cutter.take() is None, "the period may be part of something longer"
    cutter.push(" ")
    assert cutter.take() is None, "a lower case letter would make a softer end"
    cutter.push("H")
    assert cutter.take() == Unit("Hello there. ", Ending.SENTENCE)


def test_a_line_end_makes_the_end_of_a_sentence_certain_at_once() -> None:
    cutter = TextCutter()
    cutter.push("Hello there.\n")
    assert cutter.take() == Unit("Hello there.\n", Ending.SENTENCE)


def test_clauses_end_at_their_marks_but_not_within_numbers_or_names() -> None:
    """S60."""
    text = "On May 5, 2024, John Smith, Jr. came; it was cold: 1,000 people — all of them — waited, Ann said."
    assert [(unit.text, unit.ending) for unit in cut(text, clauses=True)] == [
        ("On May 5, 2024, ", Ending.COMMA),
        ("John Smith, Jr. came; ", Ending.SEMICOLON),
        ("it was cold: ", Ending.COLON),
        ("1,000 people — ", Ending.DASH),
        ("all of them — ", Ending.DASH),
        ("waited, Ann said.", Ending.SENTENCE),
    ]


def test_short_clauses_are_spoken_together() -> None:
    units = cut("Oh, yes, well, then come in, my friend.", clauses=True)
    assert [len(unit.text.strip()) >= MIN_CLAUSE_CHARACTERS for unit in units] == [True] * len(units)


@pytest.mark.parametrize("text", ["word " * 1000, "x" * 5000, " " * 5000, "é" * 700, "a\u0301" * 700, "." * 3000])
def test_text_without_marks_is_cut_between_words_or_anywhere(text: str) -> None:
    """Nothing is unbounded, and no letter is parted from its accent."""
    units = cut(*text)
    assert "".join(unit.text for unit in units) == text
    assert max(len(unit.text) for unit in units) <= MAX_UNIT_CHARACTERS
    assert not any(unit.text.startswith("\u0301") for unit in units)
    if " " in text.strip():
        assert all(unit.text.endswith(" ") for unit in units)


def test_a_long_sentence_is_cut_at_its_last_clause_that_fits() -> None:
    text = "one two three four five six, " * 20
    assert {len(unit.text) for unit in cut(text)[:-1]} == {MAX_UNIT_CHARACTERS // 29 * 29}


def test_only_a_long_opening_sentence_is_opened_with_a_clause() -> None:
    short = Unit("Good morning, everybody, and welcome to the show.", Ending.SENTENCE)
    assert opening(short) == (short,)
    opening_clause = "When the long winter was over, and the snow had gone, "
    text = f"{opening_clause}the people of the valley came out of their houses once more."
    assert len(text) > MAX_OPENING_CHARACTERS
    first, rest = opening(Unit(text, Ending.SENTENCE))
    assert first == Unit(opening_clause, Ending.COMMA)
    assert rest == Unit(text[len(first.text) :], Ending.SENTENCE)
    assert MIN_OPENING_CHARACTERS <= len(first.text) <= GOOD_OPENING_CHARACTERS


def test_a_long_opening_without_a_clause_stays_whole() -> None:
    unit = Unit("The people of the valley " * 6 + "came.", Ending.SENTENCE)
    assert opening(unit) == (unit,)
