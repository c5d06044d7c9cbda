"""The page as a person uses it: typing, keys, settings, takes, on a desk and on a phone, with and without seeing."""

from __future__ import annotations

import wave
from typing import Any

import numpy as np
import pytest
from opening import OpenPage
from playwright.sync_api import Page, expect

from streamsynth.testing.sine import sine

pytestmark = pytest.mark.browser

SAMPLES_PER_CHARACTER = 1200


@pytest.fixture
def page(open_page: OpenPage, sine_server: str) -> Page:
    """The page on the sine server, with its settings loaded."""
    page = open_page(sine_server)
    expect(page.get_by_role("combobox", name="Voice")).to_have_value("sine")
    return page


def parts(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(
        """() => streamsynth.takes.flatMap((take) => take.parts.map(({ text, status, totalSamples, playback }) =>
            ({ take: take.id, text, status, totalSamples, played: playback?.played })))"""
    )
    return found


def texts(page: Page) -> list[str]:
    return [part["text"] for part in parts(page)]


def wait_until_silent(page: Page) -> None:
    page.wait_for_function("() => !streamsynth.speaking && streamsynth.takes.every((take) => !take.making)")


def wait_for_parts(page: Page, count: int) -> None:
    page.wait_for_function("(count) => streamsynth.takes.flatMap((take) => take.parts).length === count", arg=count)


def test_as_i_type_speaks_each_sentence_when_the_typist_moves_on(page: Page) -> None:
    """The finished sentence leaves the box at the space behind it; the rest stays, to be changed, until Enter."""
    box = page.get_by_role("textbox", name="Text")
    box.press_sequentially("See Dr. Smith. ")
    wait_for_parts(page, 1)
    assert texts(page) == ["See Dr. Smith. "]
    expect(box).to_have_value("")
    box.press_sequentially("He is i")
    expect(box).to_have_value("He is i")
    expect(page.locator("#said")).to_have_text("See Dr. Smith.")
    page.keyboard.press("Enter")
    wait_until_silent(page)
    assert texts(page) == ["See Dr. Smith. ", "He is i"]
    assert len({part["take"] for part in parts(page)}) == 1


def test_as_i_type_speaks_a_finished_sentence_after_a_pause(page: Page) -> None:
    page.get_by_role("textbox", name="Text").press_sequentially("This is all.")
    wait_for_parts(page, 1)
    assert texts(page) == ["This is all."]


def test_text_that_is_being_changed_in_the_middle_is_not_spoken(page: Page) -> None:
    box = page.get_by_role("textbox", name="Text")
    box.press_sequentially("One two")
    page.keyboard.press("Home")
    box.press_sequentially("Zero. ")
    expect(box).to_have_value("Zero. One two")
    assert texts(page) == []


def test_on_enter_keeps_everything_until_enter_and_remembers_the_choice(page: Page) -> None:
    """S62: with line breaks and spaces byte-exact."""
    page.get_by_text("On Enter").click()
    box = page.get_by_role("textbox", name="Text")
    box.press_sequentially("One. Two. ")
    page.keyboard.press("Shift+Enter")
    box.press_sequentially(" Three")
    assert texts(page) == []
    page.keyboard.press("Enter")
    wait_until_silent(page)
    assert texts(page) == ["One. Two. \n Three"]
    expect(box).to_have_value("")
    page.reload()
    expect(page.get_by_role("radio", name="On Enter")).to_be_checked()


def test_pasted_text_is_heard_at_once_and_is_a_take_of_its_own(page: Page) -> None:
    box = page.get_by_role("textbox", name="Text")
    for text in ("Pasted without an end", "And another"):
        page.evaluate("(text) => { clipboard = text; }", text)
        box.evaluate(
            """(box) => {
              box.focus();
              box.setRangeText(clipboard, 0, box.value.length, "end");
              box.dispatchEvent(new InputEvent("input", { inputType: "insertFromPaste" }));
            }"""
        )
    wait_for_parts(page, 2)
    wait_until_silent(page)
    assert texts(page) == ["Pasted without an end", "And another"]
    assert len({part["take"] for part in parts(page)}) == 2


def test_control_enter_speaks_and_escape_stops_from_anywhere(page: Page) -> None:
    page.get_by_text("On Enter").click()
    page.get_by_role("textbox", name="Text").fill("A text that is long enough to be stopped " * 3)
    page.get_by_role("slider", name="Speed").focus()
    page.keyboard.press("Control+Enter")
    page.wait_for_function("() => streamsynth.heard()")
    stop = page.get_by_role("button", name="Stop", exact=True)
    expect(stop).to_have_attribute("aria-disabled", "false")
    page.keyboard.press("Escape")
    expect(stop).to_have_attribute("aria-disabled", "true")
    expect(page.locator(".take-facts")).to_contain_text("stopped at")


def test_speed_holds_from_the_next_utterance_on_and_is_remembered(page: Page) -> None:
    """S12: the samples say that the speed was honoured."""
    box = page.get_by_role("textbox", name="Text")
    box.press_sequentially("At speed one")
    page.keyboard.press("Enter")
    page.get_by_role("slider", name="Speed").fill("2")
    expect(page.locator("#speed-value")).to_have_text("2.00×")
    box.press_sequentially("At speed two")
    page.keyboard.press("Enter")
    wait_until_silent(page)
    assert [part["totalSamples"] for part in parts(page)] == [12 * 1200, 12 * 600]
    page.reload()
    expect(page.locator("#speed-value")).to_have_text("2.00×")


def test_a_speed_chosen_while_the_first_words_wait_for_the_player_is_not_theirs(page: Page) -> None:
    """S12: opening the audio output takes a moment, in which the page may be used."""
    page.evaluate(
        """() => {
          const studio = window.streamsynth;
          studio.configure({ speed: 1 });
          studio.speak("At speed one");
          studio.configure({ speed: 2 });
          studio.speak("At speed two");
        }"""
    )
    wait_for_parts(page, 2)
    wait_until_silent(page)
    assert [part["totalSamples"] for part in parts(page)] == [12 * 1200, 12 * 600]


def test_speed_and_voices_are_those_that_the_server_publishes(page: Page) -> None:
    """Aliases of other systems are not shown; one model needs no choice."""
    speed = page.get_by_role("slider", name="Speed")
    assert [speed.get_attribute(name) for name in ("min", "max")] == ["0.25", "4"]
    assert page.get_by_role("combobox", name="Voice").locator("option").all_inner_texts() == ["Sine"]
    expect(page.get_by_role("combobox", name="Model")).to_be_hidden()


def test_the_sentence_that_is_heard_is_marked(page: Page) -> None:
    page.get_by_role("textbox", name="Text").press_sequentially("Marked while it is heard. ")
    expect(page.locator("#said mark")).to_have_text("Marked while it is heard.")
    wait_until_silent(page)
    expect(page.locator("#said mark")).to_have_count(0)


def test_a_take_downloads_as_the_wav_file_that_was_heard(page: Page, tmp_path: Any) -> None:
    page.get_by_role("textbox", name="Text").press_sequentially("Two sentences. In one file")
    page.keyboard.press("Enter")
    wait_until_silent(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as wav").click()
    assert download.value.suggested_filename == "two-sentences-in-one-file.wav"
    path = tmp_path / "take.wav"
    download.value.save_as(path)
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2") / 32768
    lengths = [len(text) * SAMPLES_PER_CHARACTER for text in ("Two sentences. ", "In one file")]
    expected = np.concatenate([sine(0, length) for length in lengths])
    assert samples.size == expected.size
    assert np.abs(samples - expected).max() <= 0.5 / 32768 + 1e-6


def test_a_replay_can_be_stopped_and_its_text_taken_up_again(page: Page) -> None:
    text = "A take that lasts for a little while"
    box = page.get_by_role("textbox", name="Text")
    box.press_sequentially(text)
    page.keyboard.press("Enter")
    wait_until_silent(page)
    page.get_by_role("button", name=f"Replay: {text}").click()
    page.wait_for_function("() => streamsynth.heard()")
    page.get_by_role("button", name=f"Stop: {text}").click()
    page.wait_for_function("() => !streamsynth.speaking && streamsynth.player.status.buffered === 0")
    expect(page.locator(".take-facts")).not_to_contain_text("stopped")
    page.get_by_role("button", name=f"Edit the text again: {text}").click()
    expect(box).to_have_value(text)
    expect(box).to_be_focused()


def test_a_sample_is_spoken_with_one_click(page: Page) -> None:
    page.get_by_role("button", name="A tongue twister").click()
    page.wait_for_function("() => streamsynth.heard()")
    expect(page.get_by_role("button", name="A tongue twister")).to_be_hidden()
    page.keyboard.press("Escape")


def test_everything_can_be_reached_by_keyboard_in_reading_order(page: Page) -> None:
    page.get_by_role("textbox", name="Text").press_sequentially("One take")
    page.keyboard.press("Enter")
    wait_until_silent(page)
    page.locator("h1").evaluate("(title) => { title.tabIndex = -1; title.focus(); }")
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.className"))
    assert reached == [
        "",  # the three pages
        "",
        "",
        "voice",
        "speed",
        "text",
        "",  # the chosen radio button of the two modes
        "stop",
        "speak",
        "round replay",
        "round edit",
        "round download",
    ]


def test_every_control_has_a_name(page: Page) -> None:
    page.get_by_role("textbox", name="Text").press_sequentially("Named")
    page.keyboard.press("Enter")
    wait_until_silent(page)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, textarea, canvas:not([aria-hidden]), section")]
          .filter((element) => element.checkVisibility())
          .filter((element) => !(element.getAttribute("aria-label") || element.getAttribute("aria-labelledby")
            || element.labels?.length || (element.tagName === "BUTTON" && element.innerText.trim())))
          .map((element) => element.outerHTML)"""
    )
    assert unnamed == []


def test_the_live_region_speaks_once_a_take_and_not_while_it_lasts(page: Page) -> None:
    """A screen reader that announced every meter would talk over the voice."""
    page.evaluate(
        """() => {
          window.announced = [];
          const regions = document.querySelectorAll("[role=status], [role=alert], [aria-live]");
          for (const region of regions) {
            new MutationObserver(() => announced.push(region.textContent))
              .observe(region, { childList: true, characterData: true, subtree: true });
          }
        }"""
    )
    page.get_by_role("textbox", name="Text").press_sequentially("First. Second. Third. ")
    page.keyboard.press("Enter")
    wait_until_silent(page)
    page.wait_for_function("() => announced.length > 0")
    assert page.evaluate("() => announced") == ["Finished, 1.1 s."]


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_everything_without_scrolling_sideways(open_page: OpenPage, sine_server: str, width: int) -> None:
    page = open_page(sine_server, viewport={"width": width, "height": 740}, has_touch=True, is_mobile=True)
    page.get_by_role("textbox", name="Text").press_sequentially("Averyveryverylongwordthatneverends" * 3)
    page.get_by_role("button", name="Speak").tap()
    page.wait_for_function("() => streamsynth.heard()")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for name in ("Speak", "Stop"):
        box = page.get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None and box["height"] >= 44 and box["y"] + box["height"] <= 740
    page.get_by_role("button", name="Stop", exact=True).tap()


def test_reduced_motion_keeps_the_waveform_still_and_moves_only_the_playhead(
    open_page: OpenPage, sine_server: str
) -> None:
    page = open_page(sine_server, reduced_motion="reduce")
    still = page.evaluate(
        """async () => {
          const { Waveform } = await import("/waveform.js");
          const { Peaks } = await import("/peaks.js");
          const peaks = new Peaks(1000);
          peaks.append(Int16Array.from({ length: 2000 }, (_, n) => 200 * (n % 97)));
          const canvas = document.getElementById("waveform");
          const context = canvas.getContext("2d");
          const waveform = new Waveform(canvas);
          const shape = (playhead) => {
            waveform.draw({ peaks, playhead, growing: true });
            const { data } = context.getImageData(0, 0, canvas.width, canvas.height / 4);
            return data.filter((_, n) => n % 4 === 3);
          };
          const [early, late] = [shape(200), shape(900)];
          return early.reduce((sum, alpha, n) => sum + (alpha !== late[n] ? 1 : 0), 0) / early.length;
        }"""
    )
    assert still < 0.01  # two playheads of two pixels
    assert page.evaluate("() => getComputedStyle(document.querySelector('.dot')).animationName") == "none"


def test_text_stands_out_from_its_background_in_light_and_dark(open_page: OpenPage, sine_server: str) -> None:
    """WCAG AA: 4.5 to 1 for text, 3 to 1 for the edges of controls, in both colour schemes."""
    measure = """(pairs) => {
      const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
      const luminance = (name) => {
        canvas.fillStyle = getComputedStyle(document.body).getPropertyValue(name);
        canvas.fillRect(0, 0, 1, 1);
        const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => linear(value / 255));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
      };
      return pairs.map(([text, ground, least]) => {
        const [bright, dark] = [luminance(text), luminance(ground)].sort((a, b) => b - a);
        return { text, ground, least, ratio: (bright + 0.05) / (dark + 0.05) };
      });
    }"""
    texts = [
        ["--ink", "--card", 4.5],
        ["--ink", "--paper", 4.5],
        ["--muted", "--card", 4.5],
        ["--muted", "--paper", 4.5],
        ["--muted", "--accent-soft", 4.5],
        ["--ink", "--accent-soft", 4.5],
        ["--on-accent", "--accent", 4.5],
        ["--on-accent", "--accent-hover", 4.5],
        ["--accent", "--card", 4.5],
        ["--bad", "--card", 4.5],
        ["--ink", "--bad-soft", 4.5],
        ["--edge", "--card", 3],
    ]
    for scheme in ("light", "dark"):
        page = open_page(sine_server, color_scheme=scheme)
        faint = [pair for pair in page.evaluate(measure, texts) if pair["ratio"] < pair["least"]]
        assert faint == [], scheme
