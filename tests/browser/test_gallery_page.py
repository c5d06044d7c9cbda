"""The gallery page as a person uses it: make, watch it come, play, keep, delete; with a keyboard and by name alone."""

from __future__ import annotations

import io
import re
from pathlib import Path

import av
import pytest
from opening import OpenPage, StartServer
from playwright.sync_api import Locator, Page, expect

from streamsynth.testing.paint import COLOURS, read_picture

pytestmark = pytest.mark.browser

KEY = "gallery-test-key"


@pytest.fixture
def page(open_page: OpenPage, serve_process: StartServer) -> Page:
    """On a server of its own, where 12 pictures take 0.15 s."""
    server = serve_process("--model", "paint", "--set", "brush.step_ms=150")
    return open_page(f"{server.url}/gallery.html")


def make(page: Page, prompt: str, *, kind: str = "Video", seconds: str = "2") -> Locator:
    page.get_by_text(kind, exact=True).last.click()
    page.get_by_label("Size").select_option("128 × 128")
    if kind == "Video":
        page.get_by_label("Seconds").fill(seconds)
    page.get_by_label("Seed").fill("7")
    page.get_by_role("textbox", name="Prompt").fill(prompt)
    page.get_by_role("button", name="Make").click()
    return piece(page, prompt)


def piece(page: Page, prompt: str) -> Locator:
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=prompt, exact=True))


def announced(page: Page, text: str) -> None:
    expect(page.locator("#announcement")).to_have_text(text)


def test_a_clip_is_made_while_its_progress_shows_and_then_plays(page: Page, tmp_path: Path) -> None:
    expect(page.get_by_text("Nothing has been made here yet.")).to_be_visible()
    card = make(page, "a red field", seconds="6")
    bar = card.get_by_role("progressbar", name="Progress of a red field")
    expect(bar).to_be_visible()
    page.wait_for_function("() => document.querySelector('progress')?.value > 0")
    page.screenshot(path=tmp_path / "making.png", full_page=True)
    card.get_by_role("button", name="Play: a red field").click()
    announced(page, "Finished: a red field")
    page.wait_for_function("() => document.querySelector('video')?.currentTime > 0.3")
    assert page.evaluate("() => document.querySelector('video').duration") == pytest.approx(6, abs=0.01)
    expect(card).to_contain_text("128 × 128 · 6 s · paint · seed 7")
    assert page.evaluate("() => document.activeElement.tagName") == "VIDEO"
    with page.expect_download() as downloading:
        card.get_by_role("button", name="Download: a red field").click()
    assert re.fullmatch(r"video_[0-9a-f]{24}\.mp4", downloading.value.suggested_filename)
    with av.open(str(downloading.value.path())) as container:
        frames = [read_picture(frame.to_ndarray(format="rgb24")).frame for frame in container.decode(video=0)]
    assert frames == list(range(96))


def test_an_image_is_made_kept_and_gone_with_the_tab(page: Page) -> None:
    card = make(page, "a green field", kind="Image")
    image = card.get_by_role("img", name="a green field")
    expect(image).to_be_visible()
    with page.expect_download() as downloading:
        card.get_by_role("button", name="Download").click()
    data = Path(downloading.value.path()).read_bytes()
    with av.open(io.BytesIO(data)) as container:
        picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert read_picture(picture).colour == COLOURS["green"]
    page.reload()
    expect(page.get_by_text("Nothing has been made here yet.")).to_be_visible()


def test_a_clip_stays_for_the_next_visit_and_can_be_made_again(page: Page) -> None:
    expect(make(page, "a blue field").get_by_role("button", name="Play")).to_be_visible()
    page.reload()
    card = piece(page, "a blue field")
    expect(card.get_by_role("button", name="Play").locator("img")).to_be_visible()
    card.get_by_role("button", name="Put the prompt and its settings back: a blue field").click()
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("a blue field")
    expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()
    expect(page.get_by_label("Seed")).to_have_value("7")
    expect(page.get_by_label("Seconds")).to_have_value("2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("listitem")).to_have_count(2)


def test_deleting_asks_first_ends_what_runs_and_moves_the_focus_on(page: Page) -> None:
    finished = make(page, "a yellow field", seconds="0.5")
    expect(finished.get_by_role("button", name="Play")).to_be_visible()
    running = make(page, "a purple field", seconds="600")
    expect(running.get_by_role("progressbar")).to_be_visible()
    running.get_by_role("button", name="Delete: a purple field").press("Enter")
    expect(running).to_have_count(0)
    announced(page, "Deleted: a purple field")
    delete = finished.get_by_role("button", name="Delete: a yellow field")
    expect(delete).to_be_focused()
    page.keyboard.press("Enter")
    expect(finished.get_by_role("button", name="Really delete: a yellow field")).to_be_focused()
    expect(finished).to_have_count(1)
    page.keyboard.press("Enter")
    expect(finished).to_have_count(0)
    expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()
    page.reload()
    expect(page.get_by_text("Nothing has been made here yet.")).to_be_visible()


def test_what_another_tab_has_deleted_is_deleted_here_too(page: Page) -> None:
    card = make(page, "a red field", seconds="600")
    expect(card.get_by_role("progressbar")).to_be_visible()
    other = page.context.new_page()
    other.goto(page.url)
    expect(piece(other, "a red field")).to_be_visible()
    page.route("**/v1/videos?*", lambda route: None)  # it does not hear of the other tab before it asks
    piece(other, "a red field").get_by_role("button", name="Delete: a red field").click()
    expect(piece(other, "a red field")).to_have_count(0)
    card.get_by_role("button", name="Delete: a red field").click()
    expect(card).to_have_count(0)
    announced(page, "Deleted: a red field")
    expect(page.get_by_role("alert").first).to_be_empty()


def test_a_page_that_did_not_reach_its_server_tries_again(open_page: OpenPage, serve_process: StartServer) -> None:
    server = serve_process("--model", "paint")
    page = open_page(f"{server.url}/gallery.html")
    page.route("**/v1/limits", lambda route: route.abort())
    page.reload()
    expect(page.locator("#link-text")).to_have_text("Not connected")
    page.unroute("**/v1/limits")
    expect(page.locator("#link-text")).to_have_text("Ready", timeout=15_000)
    expect(make(page, "a red field", seconds="1").get_by_role("button", name="Play")).to_be_visible()


def test_a_prompt_that_is_too_long_is_refused_and_not_cut(page: Page) -> None:
    make(page, "a" * 4097)
    expect(page.locator("#notices")).to_contain_text("it must be text of 1 to 4096 characters")


def test_what_fails_says_why_and_what_cannot_be_is_a_notice(page: Page) -> None:
    card = make(page, "{fail 1} of a field")
    expect(card).to_contain_text("Failed. Told to fail at chunk 1.")
    card = make(page, "{fail 0} of an image", kind="Image")
    expect(card).to_contain_text("Failed. Told to fail at chunk 0.")
    page.get_by_label("Seed").fill("99999999999999999999")
    page.get_by_role("button", name="Make").click()
    expect(page.get_by_role("listitem")).to_have_count(2)


def test_a_key_is_asked_for_and_plays_the_clip_too(open_page: OpenPage, serve_process: StartServer) -> None:
    server = serve_process("--model", "paint", env={"STREAMSYNTH_API_KEYS": KEY})
    page = open_page(f"{server.url}/gallery.html")
    dialog = page.get_by_role("dialog", name="This server needs a key")
    dialog.get_by_label("Key").fill(KEY)
    page.keyboard.press("Enter")
    card = make(page, "a red field", seconds="1")
    card.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelector('video')?.currentTime > 0.2")
    assert page.evaluate("() => document.querySelector('video').src").startswith("blob:")


def test_the_pages_lead_to_each_other_and_mark_where_one_is(page: Page) -> None:
    for name in ("Speech", "Video", "Gallery"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")
        expect(page.locator("[aria-current]")).to_have_count(1)


def test_a_server_that_only_speaks_says_so(open_page: OpenPage, shared_serve_process: StartServer) -> None:
    page = open_page(f"{shared_serve_process('--model', 'sine').url}/gallery.html")
    expect(page.get_by_role("alert").first).to_contain_text("No model of this server makes video or images")
