"""What hibari's reader is given: nothing it would skip, nothing it would get wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speaking import voice

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.hibari.phonemes import split_phonemes
from streamsynth.models.hibari.reading import spell_out
from streamsynth.text.boundaries import Ending


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("It was 98.6 at 7:30.", "It was 98.6 at 7:30."),
        ("22,1 Grad", "22.1 Grad"),
        ("8,848.86 and 1,000,000", "8,848.86 and 1,000,000"),
        ("1,2,3", "1, 2, 3"),
        ("v2.0.1", "v2 point 0 point 1"),
        ("192.168.0.1", "192 dot 168 dot 0 dot 1"),
        ("agent 007", "agent 0 0 7 "),
        ("at 07:30 on 02/03/2004", "at 07:30 on 02/03/2004"),
        ("9" * 20, " ".join("9" * 20).center(41)),
        ("a .5 share", "a 0.5 share"),
        ("See https://a.org/b?c=1.", "See https colon slash slash a dot org slash b question mark c equals 1."),
        ("mail me.too@a-b.com", "mail me dot too at a dash b dot com"),
        ("₽500, 500₽", "500 rubles, 500 rubles "),
        ("$5 or $HOME", "$5 or dollar HOME"),
        ("x ≤ 3", "x less than or equal to 3"),
        ("−5 ± 1", "minus 5 ± 1"),
        ("10⁻³ m²", "10 to the power of minus 3 m²"),
        ("π and Δt", "pi and delta t"),
        ("5 μm, 3 kΩ", "5 µm, 3 kilohms"),
        ("a ⊗ b", "a circled times b"),
        ("[the docs](/a/b) ![cat](c.png)", "the docs cat"),
        ("## Title", "Title"),
        ("- item", "item"),
        ("fine :) really <3", "fine really"),
        ("ok 👍 ™", "ok"),
        ("cafe\u0301", "café"),
        ("~5 km", "about 5 km"),
    ],
)
def test_signs_and_awkward_numbers_become_words(text: str, spelled: str) -> None:
    """S59, S60."""
    assert spell_out(text).split() == spelled.split()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Hi привет", "'привет' in Cyrillic"),
        ("1次", "'1次' in Chinese"),
        ("γειά", "'γειά' in Greek"),
        ("שלום", "'שלום' in Hebrew"),
    ],
)
def test_what_it_cannot_say_is_refused_by_name(text: str, named: str) -> None:
    """S65: never noise."""
    with pytest.raises(StreamSynthError, match=named) as raised:
        spell_out(text)
    assert raised.value.code is ErrorCode.UNSUPPORTED_LANGUAGE
    assert raised.value.param == "input"


@pytest.mark.parametrize("text", ["", " ", ".", "...!?", "🙂", "\u200b", "—", "“”", "()", "♪", ":)"])
def test_text_without_sound_has_no_phonemes(text: str) -> None:
    """S64."""
    assert voice().phonemizer(text) == ""


@pytest.mark.parametrize("text", ["%", "5", "a", "é", "&", "$", "½", "∞", "π", "@"])
def test_a_single_sign_that_has_a_word_has_phonemes(text: str) -> None:
    assert voice().phonemizer(text)


def test_all_of_an_unknown_word_is_read_however_long() -> None:
    """The package's own reader drops what lies behind the 24th letter."""
    short, long = (voice().phonemizer("blorvantikesh" * times) for times in (1, 8))
    assert len(long) > 6 * len(short)


@pytest.mark.parametrize(
    "text", ["1" * 300, "x1." + "0" * 60 + "9", "9" * 37, "1" + "0" * 50 + "th", "12345678901234567s"]
)
def test_numbers_that_the_reader_cannot_count_to_are_read_digit_by_digit(text: str) -> None:
    assert voice().phonemizer(text)


_HARD = st.one_of(
    st.text(max_size=60),
    st.text(st.sampled_from("aA1.,$€%&+-–—'\"’(:;/\\@#*_~^=<>²½é🙂 "), max_size=100),
    st.tuples(st.text(st.sampled_from("aB1+'.,-("), min_size=1, max_size=5), st.integers(20, 40)).map(
        lambda p: p[0] * p[1]
    ),
)


@settings(max_examples=60, deadline=None)
@given(_HARD)
def test_any_text_gives_phonemes_of_the_alphabet_or_a_named_refusal(text: str) -> None:
    try:
        phonemes = voice().phonemizer(text)
    except StreamSynthError as error:
        assert error.code is ErrorCode.UNSUPPORTED_LANGUAGE
    else:
        assert set(phonemes) <= voice().alphabet.keys()


@pytest.mark.parametrize("text", ["0+" * 200, "oD" * 200, "7B" * 200, "%XDB" * 100, ";(" * 200, "a1" * 200])
def test_a_long_run_without_a_space_is_broken_up(text: str) -> None:
    """The package's reader takes up to ten seconds over 400 characters of it."""
    assert max(map(len, spell_out(text[:400]).split())) <= 40


def test_a_long_plain_word_is_not_broken_up() -> None:
    word = "pneumonoultramicroscopicsilicovolcanoconiosis"
    assert spell_out(word) == word


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("abˈ ,.;—"), max_size=400), st.integers(20, 60))
def test_pieces_keep_to_the_limit_and_lose_nothing_but_space(phonemes: str, limit: int) -> None:
    pieces = list(split_phonemes(phonemes, Ending.SENTENCE, limit))
    assert max(len(piece.phonemes) for piece in pieces) <= limit
    assert "".join(piece.phonemes for piece in pieces).replace(" ", "") == phonemes.replace(" ", "")
    assert pieces[-1].ending is Ending.SENTENCE


def test_pieces_end_at_pauses_before_words() -> None:
    phonemes = "aaa bbb ccc, ddd eee fff ggg hhh iii"
    pieces = [(piece.phonemes, piece.ending) for piece in split_phonemes(phonemes, Ending.SENTENCE, 20)]
    assert pieces == [
        ("aaa bbb ccc,", Ending.COMMA),
        ("ddd eee fff", Ending.LENGTH),
        ("ggg hhh iii", Ending.SENTENCE),
    ]
