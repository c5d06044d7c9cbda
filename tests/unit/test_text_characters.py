"""Characters and scripts: what is folded, what has no sound, what is refused by name."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.text.characters import fold
from streamsynth.text.scripts import ForeignWord, foreign_word, script_of

KEEP = frozenset("éü“”’—½°")
LATIN = frozenset({"Latin"})


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("plain ASCII, as it is.", "plain ASCII, as it is."),
        ("cafe\u0301", "café"),
        ("Ｆｕｌｌ １２３！", "Full 123! "),
        ("𝐁𝐨𝐥𝐝 ﬁne", "Bold fine"),
        ("zero\u200bwidth so\u00adft \ufeffmark", "zerowidth soft mark"),
        ("a\x00b\tc\nd", "a b c d"),
        ("Việt", "Viet"),
        ("٣ and ४", "3 and 4"),
        ("H₂O", "H2O"),
        ("⅓", " 1/3 "),
        ("Ⅳ", "IV"),
        ("20℃", "20°C"),
        ("«x» „y“", "“x” “y“"),
        ("co‑op", "co-op"),
        ("👩‍👧 ok 👍🏽", "   ok   "),
        ("♪ ■", "   "),
        ("\ud800", " "),
    ],
)
def test_each_character_becomes_a_plain_one_or_silence(text: str, folded: str) -> None:
    assert fold(text, KEEP) == folded


@given(st.text())
def test_nothing_but_plain_and_kept_characters_is_left(text: str) -> None:
    assert all(character in KEEP or " " <= character <= "~" for character in fold(text, KEEP))


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_printable_ascii_is_never_touched(text: str) -> None:
    assert fold(text, KEEP) == text


@pytest.mark.parametrize(
    ("text", "word", "script"),
    [
        ("Say привет now", "привет", "Cyrillic"),
        ("1次", "1次", "Chinese"),
        ("こんにちは", "こんにちは", "Japanese"),
        ("한국어!", "한국어!", "Korean"),
        ("مرحبا", "مرحبا", "Arabic"),
        ("ﷺ", "ﷺ", "Arabic"),
        ("नमस्ते", "नमस्ते", "Devanagari"),
        ("ไทย", "ไทย", "Thai"),
        ("a γειά", "γειά", "Greek"),
        ("pаypal", "pаypal", "Cyrillic"),
        ("the ɣ sound", "ɣ", "Latin"),
    ],
)
def test_a_word_in_another_script_is_found_and_named(text: str, word: str, script: str) -> None:
    assert foreign_word(text, LATIN, KEEP) == ForeignWord(word, script)


@pytest.mark.parametrize("text", ["café Zürich Việt Łódź", "Ｆｕｌｌ 𝐁𝐨𝐥𝐝 ﬁ", "🙂 → ∞ €", "٣ ४ Ⅳ", "\u200b\ud800", ""])
def test_accents_styles_signs_and_digits_are_no_foreign_words(text: str) -> None:
    assert foreign_word(text, LATIN, frozenset("Ł")) is None


def test_a_long_foreign_word_is_shown_by_its_beginning() -> None:
    found = foreign_word("я" * 1000, LATIN, frozenset())
    assert found is not None
    assert len(found.word) <= 60


@given(st.characters())
def test_only_letters_have_a_script(character: str) -> None:
    script = script_of(character)
    if script is not None:
        plain = unicodedata.normalize("NFKC", character)[0]
        assert unicodedata.category(plain)[0] in "LMN"
