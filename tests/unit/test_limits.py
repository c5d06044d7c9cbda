"""Limits are checked where they are set, and published as they are."""

from __future__ import annotations

import math

import pytest

from streamsynth.config.registry import find_pipeline
from streamsynth.errors import StreamSynthError
from streamsynth.realtime.limits import Limits
from streamsynth.speech import MAX_TEXT_CHARACTERS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("idle_s", 0),
        ("sessions", -1),
        ("body_s", math.nan),
        ("drain_s", math.inf),
        ("sessions", 1.5),
        ("sessions", True),
        ("key_share", 2),
        ("text_characters", 65_537),
        ("outbound_message_bytes", 1023),
    ],
)
def test_a_limit_that_cannot_be_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(StreamSynthError) as caught:
        Limits(**{name: value})  # type: ignore[arg-type]  # the wrong types are the point
    assert caught.value.param == name


@pytest.mark.parametrize("name", ["tiny-speech", "hibari"])
def test_an_embedded_voice_speaks_the_longest_text_to_its_end(name: str) -> None:
    """At its lowest speed too. Fifteen characters a second are its pace, ten a slow one; an answer over HTTP cannot say
    that it was cut.
    """
    speech = find_pipeline(name).speech
    assert speech.max_audio_seconds >= MAX_TEXT_CHARACTERS / 10 / speech.speed[0]


def test_every_limit_is_published_with_its_value() -> None:
    published = Limits(sessions=7).published()
    assert published["sessions"] == 7
    assert published["body_bytes"] == 6 * 1024 * 1024
    assert published["first_message_s"] == 10
