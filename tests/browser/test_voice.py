"""The page with the embedded voices: real speech from key to loudspeaker."""

from __future__ import annotations

import numpy as np
import pytest
from ear import HEARABLE, Ear
from opening import OpenPage, StartServer
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def url(shared_serve_process: StartServer) -> str:
    return shared_serve_process("--model", "tiny-speech", "--model", "hibari", "--model", "sine").url


def test_typed_sentences_are_spoken_whole_and_marked_as_they_are_heard(open_page: OpenPage, url: str) -> None:
    """Every sample that the server made is played once; the marked sentence is the one that is heard."""
    ear = Ear(open_page(url, **HEARABLE))
    ear.page.get_by_text("On Enter").click()
    ear.type_text("The rain has stopped. Now we can go out.")
    ear.page.keyboard.press("Enter")
    marked = ear.page.locator("#said mark")
    expect(marked).to_have_text("The rain has stopped.")
    expect(marked).to_have_text("Now we can go out.")
    ear.wait_until_silent()
    [take] = ear.takes()
    [part] = take["parts"]
    assert part["status"] == "completed"
    assert part["playback"]["played"] == part["samples"] == part["total"]
    recording = ear.recording(0)
    assert 2 < recording.size / 24_000 < 8
    assert np.abs(recording).max() > 0.1


def test_another_model_brings_its_own_voices_and_speeds(open_page: OpenPage, url: str) -> None:
    """The first model is the default; a choice holds from the next utterance on."""
    ear = Ear(open_page(url, **HEARABLE))
    voice = ear.page.get_by_role("combobox", name="Voice")
    speed = ear.page.get_by_role("slider", name="Speed")
    model = ear.page.get_by_role("combobox", name="Model")
    expect(model).to_have_value("tiny-speech")
    offered = {
        "tiny-speech": ("tiny", ["0.5", "1.5"]),
        "hibari": ("heart", ["0.5", "2"]),
        "sine": ("sine", ["0.25", "4"]),
    }
    for name, (own, speeds) in offered.items():
        model.select_option(name)
        expect(voice).to_have_value(own)
        assert [speed.get_attribute(bound) for bound in ("min", "max")] == speeds
    ear.type_text("Now a tone")
    ear.page.keyboard.press("Enter")
    ear.wait_until_silent()
    assert ear.takes()[0]["parts"][0]["total"] == len("Now a tone") * 1200


def test_what_the_voice_cannot_say_is_refused_in_plain_words(open_page: OpenPage, url: str) -> None:
    ear = Ear(open_page(url, **HEARABLE))
    ear.type_text("Привет")
    ear.page.keyboard.press("Enter")
    expect(ear.page.locator("#notices")).to_contain_text("This voice cannot speak that language.")
    ear.type_text("Hello")
    ear.page.keyboard.press("Enter")
    ear.wait_until_silent()
    assert [take["parts"][0]["status"] for take in ear.takes()] == ["failed", "completed"]
