"""How the embedded voice starts, pauses and lasts, beside what the package itself makes of the same sentences."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import hibari
import numpy as np
import pytest
from speaking import audio, drain, speak, voice

from streamsynth.models.hibari.engine import HibariEngine
from streamsynth.models.hibari.joins import AUDIBLE, FAINT, FAINT_FRAMES
from streamsynth.models.hibari.network import Abort
from streamsynth.models.hibari.pipeline import SAMPLE_RATE
from streamsynth.models.hibari.vocoder import FRAME_SAMPLES, Float, Renderer
from streamsynth.speech import Granularity, SpeechRequest

HELD = (Path(__file__).parents[1] / "flow" / "held_sentences.txt").read_text().splitlines()
STARTS = re.findall(
    r"\w+",
    """
    Think Thank Three Throw Half Huge He How Who Hurry Fifty Four Philip She Shh Shoes See Some Six Zoo Vera Very
    View Yes You We One What Why This Those Them Please Pull Take Could Keep Go Do Be Mother No Never Let Run All
    Ouch Us Old Each Eat It Angry Chew Just Quite Stop Spring Sleep
    """,
)
"""Words with every sound that an English word begins with, the soft ones most."""

LOUD = 0.01
"""Softer is silence here: 40 dB below full scale, which is 25 to 36 dB below the peak of any of these units."""


def lower(sentence: str) -> str:
    start = sentence if sentence.startswith(("I ", "I'")) else sentence[0].lower() + sentence[1:]
    return start.rstrip(".?!")


def one_sentence(joint: str, number: int) -> str:
    """Two held sentences, made one that is long enough to be opened with a clause."""
    first, second = HELD[number], HELD[-1 - number]
    return f"{first.rstrip('.?!')}{joint}{lower(second)}."


def onset_s(samples: Float, level: float) -> float:
    return int(np.argmax(np.abs(samples) > level)) / SAMPLE_RATE


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_every_sound_is_heard_within_50_ms(speed: float) -> None:
    for text in [*(f"{word} in here, they said." for word in STARTS), *(HELD if speed == 1 else ())]:
        assert onset_s(audio(speak(text, speed=speed)), LOUD) <= 0.050, text


def test_the_start_of_a_soft_consonant_is_kept() -> None:
    """Of what is softer than LOUD at the start of a word, its last 37 ms, or all if there is less."""
    assert LOUD == AUDIBLE
    for word in STARTS:
        text = f"{word} in here, they said."
        spectrum = voice().network.run(voice().phonemizer(text), 1.0, Abort())
        whole = Renderer(spectrum, 0, len(spectrum), np.random.default_rng(1)).render(len(spectrum))
        soft_s = onset_s(whole, LOUD) - onset_s(whole, FAINT)
        kept_s = onset_s(audio(speak(text)), LOUD)
        # The noise in the voice is not the same, and may reach a level a frame earlier or later.
        frame_s = FRAME_SAMPLES / SAMPLE_RATE
        assert kept_s >= min(soft_s, FAINT_FRAMES * frame_s) - frame_s, word


@pytest.mark.parametrize("frames", [1, 9])
def test_the_length_of_the_first_window_moves_no_sample(frames: int) -> None:
    """Where speech starts is found in a window of its own, which may be longer than the first that is sent."""
    text = "Think of it. He did."
    request = SpeechRequest(voice="heart", seed=1, granularity=Granularity.SENTENCE)
    stream = HibariEngine(first_window_frames=frames).open(request.to_wire())
    stream.push(text)
    stream.finish()
    made = drain(stream)
    assert len(made[0].media) == frames * FRAME_SAMPLES
    np.testing.assert_allclose(audio(made), audio(speak(text, granularity=Granularity.SENTENCE)), atol=1e-6)


@functools.cache
def package() -> hibari.Hibari:
    return hibari.Hibari()


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(HELD, id="sentences"),
        pytest.param([" ".join(HELD[number : number + 3]) for number in range(0, 99, 3)], id="three at a time"),
        *(
            pytest.param([one_sentence(joint, number) for number in range(12)], id=repr(joint))
            for joint in (", and ", ", ", "; ", ": ", " — ", " and ", ". ")
        ),
    ],
)
def test_any_text_lasts_as_long_as_the_package_makes_its_sentences_within_five_percent(texts: list[str]) -> None:
    """The package is given each sentence whole; ours opens long ones with a clause and joins the pieces."""
    for text in texts:
        assert len(audio(speak(text))) == pytest.approx(len(package()(text, seed=0)), rel=0.05), text


def test_a_line_that_an_editor_wrapped_lasts_as_long_as_if_it_were_not() -> None:
    """The package takes every line for a sentence, with a pause behind it; so it is given the sentence on one line."""
    wrapped = (
        "The little boy hid behind the curtain and tried not to laugh\nwhen his brother came in and looked for him."
    )
    assert len(audio(speak(wrapped))) == pytest.approx(len(package()(wrapped.replace("\n", " "), seed=0)), rel=0.05)
