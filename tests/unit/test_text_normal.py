"""Figures and short forms become the words that are spoken, the same however the text arrived."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.models.hibari.reading import spell_out
from streamsynth.text.cutter import TextCutter
from streamsynth.text.normal import normalise
from streamsynth.text.spelling import plain_characters, spell_acronyms

CASES = {
    # numbers
    "It was 98.6 and 0.50, not -3.": "It was ninety eight point six and zero point five zero, not minus three.",
    "1,234,567 people": "one million two hundred thirty four thousand five hundred sixty seven people",
    "8,849 meters": "eight thousand eight hundred forty nine meters",
    "agent 007": "agent zero zero seven",
    "12345678901234567": "one two three four five six seven eight nine zero one two three four five six seven",
    "22,1 grad": "twenty two point one grad",
    "5 - 3 is 2": "five minus three is two",
    "10x faster": "ten times faster",
    "MP3, B12 and H2O": "MP three, B twelve and H two O",
    "v2.0.1": "v two point zero point one",
    "16:9": "sixteen to nine",
    "3/4 of 1/2, 5/100": "three quarters of one half, five over one hundred",
    "2 1/2 cups, 1½ more": "two and a half cups, one and a half more",
    "1-2 pages, 1914–1918": "one to two pages, nineteen fourteen to nineteen eighteen",
    "open 24/7": "open twenty four seven",
    # ordinals
    "the 1st, 22nd and 103rd": "the first, twenty second and one hundred third",
    "Chapter IV of Henry VIII": "Chapter four of Henry the eighth",
    "World War II ended.": "World War two ended.",
    # dates
    "On March 3rd, 2019, it closed": "On March third, twenty nineteen, it closed",
    "Jan. 5 or Tue. 3 Mar. 2020": "January fifth or Tuesday the third of March twenty twenty",
    "3/14/2019 and 25/12/99": "March fourteenth, twenty nineteen and December twenty fifth, nineteen ninety nine",
    "2019-03-14": "March fourteenth, twenty nineteen",
    "in 1905, 2005 and 1900": "in nineteen oh five, two thousand five and nineteen hundred",
    "the 1990s and the '80s": "the nineteen nineties and the eighties",
    "I may 5 times": "I may five times",
    # times
    "at 7:30 p.m. or 14:05": "at seven thirty PM or fourteen oh five",
    "at 9:00, then 12 noon": "at nine o'clock, then twelve noon",
    "It ended at 5 p.m.": "It ended at five PM.",
    "3:45:01": "three forty five and one second",
    # money
    "$12.50, $1, $0.99": "twelve dollars and fifty cents, one dollar, ninety nine cents",
    "$1.5 million and $5M": "one point five million dollars and five million dollars",
    "€20, £3.01, 5 USD": "twenty euros, three pounds and one penny, five US dollars",
    # units
    "5 km, 1 kg, 16GB": "five kilometers, one kilogram, sixteen gigabytes",
    "60 km/h or 3.5 GHz": "sixty kilometers per hour or three point five gigahertz",
    "-3°F, 100 °C, 50%": "minus three degrees Fahrenheit, one hundred degrees Celsius, fifty percent",
    "5 m² and a 5-km run": "five square meters and a five kilometer run",
    "He is 5'11\".": "He is five foot eleven.",
    "a 2 min. walk": "a two minutes walk",
    # short forms
    "Dr. Brown met Mrs. Lee on Main St.": "Doctor Brown met Missus Lee on Main Street.",
    "St. Peter, e.g. a saint": "Saint Peter, for example a saint",
    "approx. 5 vs. 6": "approximately five versus six",
    "No. 5, p. 12, Fig. 3": "number five, page twelve, Figure three",
    "the U.S. and NASA": "the U.S. and NASA",
    # signs and addresses
    "a & b + c = d": "a and b plus c equals d",
    "#7 in C#": "number seven in C sharp",
    "555-1234 or +1 (800) 555-0199": (
        "five five five, one two three four or plus one, eight zero zero, five five five, zero one nine nine"
    ),
    "10.0.0.1": "ten dot zero dot zero dot one",
}


@pytest.mark.parametrize("text", CASES)
def test_what_is_written_short_is_said_in_full(text: str) -> None:
    assert normalise(spell_out(text)) == CASES[text]


@given(st.text("0123456789.,:/-$%'#° aApPmMkgIVXJan\"½€", max_size=30))
@settings(max_examples=300, deadline=None)
def test_no_digit_is_left_and_what_was_read_is_not_read_again(text: str) -> None:
    said = normalise(spell_out(text))
    assert not re.search(r"\d", said)
    assert "  " not in said


@pytest.mark.parametrize("clauses", [False, True])
def test_one_character_at_a_time_gives_the_words_of_the_whole(clauses: bool) -> None:
    """A number that is still being typed is not spoken: 22 may become 22.5."""
    text = "It is 22,150.5 km. On March 3rd, 2019, at 7:30 p.m. Dr. Brown paid $12.50, i.e. 3/4 of it. Then 1. And 2"

    def words(pieces: list[str]) -> list[str]:
        cutter = TextCutter(clauses=clauses)
        for piece in pieces:
            cutter.push(piece)
        cutter.finish()
        return [normalise(spell_out(unit.text)) for unit in iter(cutter.take, None)]

    assert words(list(text)) == words([text])
    assert words([text])[0] == "It is twenty two thousand one hundred fifty point five kilometers."


@pytest.mark.parametrize("arrived", ["Take 22", "Take 22.", "Take 22,", "Take 22:", "It costs $1", "On March 3"])
def test_a_number_at_the_end_of_what_has_arrived_waits(arrived: str) -> None:
    cutter = TextCutter(clauses=True)
    cutter.push(arrived)
    assert cutter.take() is None


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("The FBI met in the U.S.", "the eff bee eye met in the you ess."),
        ("NASA has CDs.", "nasa has see dees."),
        ("STOP THAT NOW", "stop that now"),
        ("Plan B (really) — “yes”…", "plan bee, really, yes."),
        ("Naïve, it's a café", "naive, it's a cafe"),
        ("'Hello', the dogs' owner said", "hello, the dogs owner said"),
        ("well-known", "well-known"),
        ("...", "."),
    ],
)
def test_without_a_pronunciation_letters_are_named_and_the_rest_is_plain(text: str, characters: str) -> None:
    assert plain_characters(spell_acronyms(text)) == characters
