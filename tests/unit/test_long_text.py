"""A text of any length becomes utterances that end with a sentence."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.long_text import UTTERANCE_CHARACTERS, UtteranceCutter
from streamsynth.text.cutter import MAX_UNIT_CHARACTERS


def utterances(parts: list[str], characters: int = UTTERANCE_CHARACTERS) -> list[str]:
    cutter = UtteranceCutter(characters)
    found = [""]
    for piece in [piece for part in parts for piece in cutter.push(part)] + cutter.finish():
        found[-1] += piece.text
        if piece.ends_utterance:
            found.append("")
    return found if found[-1] else found[:-1]


SENTENCE = "Dr. Smith paid 98.6 dollars. "


def test_a_short_text_is_one_utterance_and_passes_at_once() -> None:
    cutter = UtteranceCutter()
    assert [piece.text for piece in cutter.push("Hello the")] == ["Hello the"]
    assert [piece.text for piece in cutter.push("re.")] == ["re."]
    assert cutter.finish() == []


def test_a_long_text_is_cut_behind_the_sentence_that_fills_an_utterance() -> None:
    """S59: not behind "Dr.", nor inside 98.6."""
    assert utterances([SENTENCE * 9], characters=40) == [SENTENCE * 2] * 4 + [SENTENCE]


def test_text_without_sentences_is_cut_all_the_same() -> None:
    found = utterances(["x" * 5000], characters=1000)
    assert "".join(found) == "x" * 5000
    assert max(len(text) for text in found) <= 1000 + MAX_UNIT_CHARACTERS


@given(
    st.lists(st.sampled_from([SENTENCE, "word ", "3.14", ".", "\n\n", "é", "Yes! ", "x" * 90]), max_size=40),
    st.lists(st.integers(0, 2000), max_size=8),
)
def test_the_utterances_do_not_depend_on_how_the_text_is_split(words: list[str], cuts: list[int]) -> None:
    text = "".join(words)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(bounds)]
    whole = utterances([text], characters=100)
    assert utterances(parts, characters=100) == whole
    assert "".join(whole) == text


@pytest.mark.parametrize("text", ["", "a"])
def test_there_may_be_little_to_say(text: str) -> None:
    assert "".join(utterances([text])) == text
