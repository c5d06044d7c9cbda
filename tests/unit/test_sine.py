"""The sine engine: every sample known, whatever the text, its split and its segments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.engine.stream import Emission
from streamsynth.errors import StreamSynthError
from streamsynth.speech import Granularity, SpeechRequest
from streamsynth.testing.sine import SineEngine, sine

SAMPLES = 10


def engine() -> SineEngine:
    return SineEngine(samples_per_character=SAMPLES, chunk_samples=16)


def play(pieces: list[str], granularity: Granularity = Granularity.NONE, **fields: object) -> list[Emission]:
    """All emissions of an utterance, stepped as far as possible after each piece."""
    request = SpeechRequest(voice="sine", granularity=granularity, **fields)  # type: ignore[arg-type]  # by name
    stream = engine().open(request.to_wire())
    made: list[Emission] = []

    def run() -> None:
        while not (made and made[-1].final) and stream.wake_at() is not None:
            emission = stream.step()
            assert emission is not None
            made.append(emission)

    for piece in pieces:
        stream.push(piece)
        run()
    stream.finish()
    run()
    return made


@pytest.mark.parametrize("name", ["chunk_samples", "samples_per_character"])
def test_a_size_that_would_make_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(StreamSynthError, match=f"{name} is 0; it must be at least 1"):
        SineEngine(**{name: 0})


def spoken(emissions: list[Emission]) -> np.ndarray:
    return np.concatenate([emission.media for emission in emissions])


@given(st.lists(st.text(alphabet="ab. {fail}3", max_size=12), max_size=6))
def test_any_split_of_the_text_is_the_same_tone(pieces: list[str]) -> None:
    text = "".join(pieces)
    trickled = spoken(play(pieces))
    np.testing.assert_array_equal(trickled, spoken(play([text])))
    np.testing.assert_array_equal(trickled, sine(0, len(trickled)))


@pytest.mark.parametrize("pieces", [["One two. Three four. Five."], list("One two. Three four. Five.")])
def test_sentences_are_segments_whose_texts_join_to_the_whole(pieces: list[str]) -> None:
    made = play(pieces, Granularity.SENTENCE)
    texts = [emission.segment_text for emission in made if emission.segment_text is not None]
    assert texts == ["One two. ", "Three four. ", "Five."]
    assert [emission.segment for emission in made if emission.segment_final] == [0, 1, 2]
    assert [emission.final for emission in made].count(True) == 1
    np.testing.assert_array_equal(spoken(made), sine(0, 26 * SAMPLES))


def test_under_none_there_is_one_segment() -> None:
    made = play(["One two. Three."])
    assert {emission.segment for emission in made} == {0}
    assert made[0].segment_text == "One two. Three."


@pytest.mark.parametrize("granularity", list(Granularity))
def test_what_cannot_be_spoken_has_no_samples_and_no_segment(granularity: Granularity) -> None:
    (only,) = play(["... "], granularity)
    assert (len(only.media), only.final, only.segment_text, only.segment_final) == (0, True, None, False)


def test_speed_divides_the_length() -> None:
    assert len(spoken(play(["abcd"], speed=2.0))) == 20


def test_a_limit_cuts_and_says_so() -> None:
    made = play(["x" * 50], max_new_tokens=2)
    assert len(spoken(made)) == 32
    assert made[-1].finish_reason == "length"


def test_a_told_failure_comes_at_its_chunk() -> None:
    with pytest.raises(StreamSynthError, match="chunk 2"):
        play(["{fail 2}" + "x" * 50])


def test_a_told_stall_makes_nothing_from_its_chunk_on() -> None:
    stream = engine().open(SpeechRequest(voice="sine").to_wire())
    stream.push("{stall 1}" + "x" * 50)
    assert stream.step() is not None
    assert stream.step() is None
    assert stream.wake_at() is not None
