"""What the page does when things are not simply there: an idle, full, locked or lost server, or no sound allowed."""

from __future__ import annotations

import re

import pytest
from opening import OpenPage, StartServer
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

KEY = "browser-test-key"
HIDE = """
  window.pretendHidden = false;
  Object.defineProperty(document, "hidden", { get: () => window.pretendHidden });
"""


def set_hidden(page: Page, hidden: bool) -> None:
    page.evaluate(
        """(hidden) => {
          window.pretendHidden = hidden;
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def speak(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Text").press_sequentially(text)
    page.keyboard.press("Enter")


def wait_until_spoken(page: Page, text: str) -> None:
    page.wait_for_function(
        """(text) => streamsynth.takes.some((take) =>
          take.text === text && take.parts.every((part) => part.playback))""",
        arg=text,
    )


def connections(page: Page) -> int:
    return int(page.evaluate("() => streamsynth.wire.connections"))


def wait_for_state(page: Page, state: str) -> None:
    page.wait_for_function("(state) => streamsynth.wire.state === state", arg=state)


def test_an_idle_connection_ends_silently_and_the_next_words_open_another(
    open_page: OpenPage, serve_process: StartServer
) -> None:
    """S56: a hidden page lets its session end (4000); typing then just works, and nobody hears of it."""
    page = open_page(serve_process("--model", "sine", "--limit", "idle_s=1").url, before=HIDE)
    wait_for_state(page, "open")
    set_hidden(page, True)
    wait_for_state(page, "resting")
    expect(page.locator("#link-state")).to_have_text("Ready")
    speak(page, "Back again")
    wait_until_spoken(page, "Back again")
    assert connections(page) == 2
    expect(page.locator("#notices")).to_be_empty()


def test_a_hidden_silent_page_lets_go_of_the_sound_device(open_page: OpenPage, sine_server: str) -> None:
    """And one that speaks goes on speaking behind another tab."""
    page = open_page(sine_server, before=HIDE)
    speak(page, "Long enough to be heard from behind")
    page.wait_for_function("() => streamsynth.heard()")
    set_hidden(page, True)
    wait_until_spoken(page, "Long enough to be heard from behind")
    set_hidden(page, False)
    set_hidden(page, True)
    page.wait_for_function("() => !streamsynth.player.running")
    speak(page, "And again")
    wait_until_spoken(page, "And again")


def test_a_page_that_is_looked_at_keeps_its_session(open_page: OpenPage, serve_process: StartServer) -> None:
    """S56: `session.ping` holds it over several idle limits; protocol pings would not."""
    page = open_page(serve_process("--model", "sine", "--limit", "idle_s=1").url)
    wait_for_state(page, "open")
    since = page.evaluate("() => performance.now()")
    page.wait_for_function("(since) => performance.now() > since + 3500", arg=since)
    assert connections(page) == 1
    assert page.evaluate("() => streamsynth.wire.state") == "open"


def test_a_full_server_is_said_and_tried_again_until_there_is_room(
    open_page: OpenPage, serve_process: StartServer
) -> None:
    """What was typed meanwhile is spoken as soon as the other session has gone."""
    url = serve_process("--model", "sine", "--limit", "sessions=1").url
    first = open_page(url)
    wait_for_state(first, "open")
    second = open_page(url)
    expect(second.locator("#notices")).to_contain_text("The server is full. Trying again in")
    speak(second, "Waiting for room")
    first.close()
    wait_until_spoken(second, "Waiting for room")
    expect(second.locator("#notices")).to_be_empty()
    expect(second.locator("#link-state")).to_have_text("Ready")


def test_a_key_is_asked_for_refused_by_name_and_kept_for_the_tab_only(
    open_page: OpenPage, serve_process: StartServer
) -> None:
    page = open_page(serve_process("--model", "sine", env={"STREAMSYNTH_API_KEYS": KEY}).url)
    dialog = page.get_by_role("dialog", name="This server needs a key")
    expect(dialog).to_be_visible()
    entry = dialog.get_by_label("Key", exact=True)
    entry.fill("not a key!")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("A key has only letters, digits, - and _.")
    entry.fill("wrong-key")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("The server does not know this key.")
    entry.fill(KEY)
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("combobox", name="Voice")).to_have_value("sine")
    speak(page, "Let in")
    wait_until_spoken(page, "Let in")
    assert KEY not in page.evaluate("() => JSON.stringify(localStorage) + location.href + document.body.innerHTML")
    page.reload()
    wait_for_state(page, "open")


def test_a_key_can_be_entered_later(open_page: OpenPage, serve_process: StartServer) -> None:
    page = open_page(serve_process("--model", "sine", env={"STREAMSYNTH_API_KEYS": KEY}).url)
    page.get_by_role("button", name="Not now").click()
    expect(page.locator("#link-state")).to_have_text("Key needed")
    page.get_by_role("button", name="Enter key").click()
    page.get_by_label("Key", exact=True).fill(KEY)
    page.get_by_role("button", name="Use key").click()
    wait_for_state(page, "open")
    expect(page.locator("#notices")).to_be_empty()


def test_plain_http_from_another_host_is_said_and_text_is_not_lost(
    open_page: OpenPage, serve_process: StartServer
) -> None:
    """Browsers have no AudioWorklet there: nothing can play, and the page says why and what helps."""
    url = serve_process("--model", "sine", env={"STREAMSYNTH_API_KEYS": KEY}).url
    page = open_page(url.replace("127.0.0.1", "speech.test"))
    expect(page.locator("#notices")).to_contain_text("plain http from another machine")
    page.get_by_role("button", name="Not now").click()
    speak(page, "Nobody hears this. ")
    expect(page.get_by_role("textbox", name="Text")).to_have_value("Nobody hears this. ")
    expect(page.get_by_role("button", name="Speak", exact=True)).to_have_attribute("aria-disabled", "true")


def test_a_failed_utterance_says_so_and_the_next_one_is_spoken(open_page: OpenPage, sine_server: str) -> None:
    page = open_page(sine_server)
    speak(page, "{fail 1}This one breaks after half a second")
    expect(page.locator("#notices")).to_contain_text("Told to fail at chunk 1.")
    expect(page.locator(".take-facts .problem")).to_contain_text("Told to fail at chunk 1.")
    speak(page, "This one does not")
    wait_until_spoken(page, "This one does not")
    assert connections(page) == 1


def test_an_error_notice_can_be_dismissed(open_page: OpenPage, sine_server: str) -> None:
    page = open_page(sine_server)
    speak(page, "{fail 0}Broken")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator("#notices")).to_be_empty()


def test_text_over_the_servers_limit_stays_in_the_box_and_says_by_how_much(
    open_page: OpenPage, serve_process: StartServer
) -> None:
    page = open_page(serve_process("--model", "sine", "--limit", "text_characters=20").url)
    expect(page.get_by_role("combobox", name="Voice")).to_have_value("sine")
    text = "Twenty-five letters 😀 long"
    box = page.get_by_role("textbox", name="Text")
    box.fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#notices")).to_have_text("The text is 6 characters too long.")
    expect(box).to_have_value(text)


def test_a_lost_server_is_said_and_what_was_made_is_kept(open_page: OpenPage, serve_process: StartServer) -> None:
    """The utterance ends with the reason, its audio can be replayed, and the page goes on trying."""
    server = serve_process("--model", "sine", "--set", "tone.real_time=true")
    page = open_page(server.url)
    text = "Interrupted by the end of its server " * 3
    speak(page, text)
    page.wait_for_function("() => streamsynth.takes[0]?.samples > 0")
    server.kill()
    expect(page.locator("#notices")).to_contain_text("The server cannot be reached. Trying again.")
    expect(page.locator("#link-state")).to_have_text("Not connected")
    page.wait_for_function("() => !streamsynth.speaking")
    assert page.evaluate("() => streamsynth.takes[0].error.code") == "unreachable"
    page.get_by_role("button", name=re.compile("Replay: Interrupted")).click()
    page.wait_for_function("() => streamsynth.heard()")
