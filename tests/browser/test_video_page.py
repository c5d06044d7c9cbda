"""The video page as a person uses it: start, watch, steer, stop, keep."""

from __future__ import annotations

import re
from pathlib import Path

import av
import numpy as np
import pytest
from opening import OpenPage, StartServer
from playwright.sync_api import Page, expect
from train_tiny_world.score import seen_at_the_end, shipped_judge

from streamsynth.models.tiny_world.reading import parse
from streamsynth.testing.paint import COLOURS, read_picture

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def paint_server(shared_serve_process: StartServer) -> str:
    return shared_serve_process("--model", "paint").url


@pytest.fixture(scope="module")
def world_server(shared_serve_process: StartServer) -> str:
    return shared_serve_process("--model", "tiny-world").url


def kept_clip(page: Page) -> av.container.InputContainer:
    """Stop the video and download it."""
    page.get_by_role("button", name="Stop").click()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download").click()
    return av.open(str(downloading.value.path()))


def shown_colour(page: Page) -> list[int]:
    """The colour of the picture's lower right corner, as the browser shows it."""
    colour: list[int] = page.evaluate(
        """() => {
            const video = document.getElementById("screen");
            const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
            const context = canvas.getContext("2d");
            context.drawImage(video, 0, 0);
            return [...context.getImageData(canvas.width - 4, canvas.height - 2, 1, 1).data.slice(0, 3)];
        }"""
    )
    return colour


def expect_colour(page: Page, name: str) -> None:
    assert all(abs(a - b) <= 12 for a, b in zip(shown_colour(page), COLOURS[name], strict=True))


def test_two_pages_steer_their_own_picture_while_it_plays(
    open_page: OpenPage, paint_server: str, tmp_path: Path
) -> None:
    """V40: without an underrun, and the clip that is kept is the video that was seen."""
    red, green = (open_page(f"{paint_server}/video.html") for _ in range(2))
    for page, prompt in ((red, "a red field"), (green, "a green field")):
        page.get_by_role("textbox", name="Prompt").fill(prompt)
        page.get_by_role("button", name="Start").click()
        page.wait_for_function("() => streamsynth.screen.position > 0.5")
    expect_colour(red, "red")
    expect_colour(green, "green")

    red.get_by_label("Change over").fill("0")
    red.get_by_role("textbox", name="Prompt").fill("a blue field")
    red.get_by_role("button", name="Steer").click()
    event = red.get_by_role("listitem")
    expect(event).to_have_text(
        re.compile(r"a blue field.*Done.*acknowledged in.*from 0:0\d, picture \d+.*reached by.*seen")
    )
    expect_colour(red, "blue")
    expect_colour(green, "green")

    red.get_by_role("textbox", name="Prompt").fill("{refuse 0}")
    red.get_by_role("button", name="Steer").click()
    expect(red.get_by_role("listitem").first).to_contain_text("The model cannot do that")
    lead_s = red.evaluate("() => streamsynth.screen.lead")
    assert 0 < lead_s < 3

    red.screenshot(path=tmp_path / "video.png", full_page=True)
    with kept_clip(red) as container:
        pictures = [read_picture(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    assert [each.frame for each in pictures] == list(range(len(pictures)))
    assert pictures[-1].prompt_version == 1
    expect(red.get_by_role("button", name="Start")).to_be_visible()
    expect(green.locator("#link-text")).to_have_text("Running")


def test_two_pages_steer_their_own_world(open_page: OpenPage, world_server: str) -> None:
    """The embedded model on a CPU: what a page steers is seen in its own video, and what it did not speak of stays."""
    prompts = (
        "a red ball bouncing over a green meadow by day, clear sky",
        "two yellow stars growing in space at night, clear sky",
    )
    first, _ = pages = [open_page(f"{world_server}/video.html") for _ in prompts]
    for page, prompt in zip(pages, prompts, strict=True):
        page.get_by_role("textbox", name="Prompt").fill(prompt)
        page.get_by_role("button", name="Start").click()
        page.wait_for_function("() => streamsynth.screen.position > 1")
    first.get_by_label("Change over").fill("0")
    first.get_by_role("textbox", name="Prompt").fill("a blue ball")
    first.get_by_role("button", name="Steer").click()
    expect(first.get_by_role("listitem")).to_contain_text("Done")
    for page in pages:
        page.wait_for_function(
            f"() => streamsynth.screen.position > {page.evaluate('streamsynth.screen.position') + 2}"
        )

    judge = shipped_judge()
    for page, expected in zip(
        pages, (parse(prompts[0]).values | {"colour": "blue"}, parse(prompts[1]).values), strict=True
    ):
        with kept_clip(page) as container:
            pictures = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
        assert seen_at_the_end(judge, pictures) == expected


def test_what_a_world_has_not_is_refused_on_the_page(open_page: OpenPage, world_server: str) -> None:
    page = open_page(f"{world_server}/video.html")
    expect(page.get_by_text("balls, squares, triangles or stars")).to_be_visible()
    page.get_by_role("textbox", name="Prompt").fill("an elephant")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert").first).to_contain_text("elephant")


def test_a_start_that_is_refused_leaves_the_last_video_and_its_download(open_page: OpenPage, paint_server: str) -> None:
    page = open_page(f"{paint_server}/video.html")
    prompt = page.get_by_role("textbox", name="Prompt")
    prompt.fill("green")
    page.get_by_role("button", name="Start").click()
    page.wait_for_function("() => streamsynth.screen.position > 0.5")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Download")).to_be_visible()
    prompt.fill("{refuse 0}")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert").first).to_contain_text("refused")
    expect(page.get_by_text("Say what to show")).to_be_hidden()
    expect_colour(page, "green")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download").click()
    with av.open(str(downloading.value.path())) as container:
        assert next(container.decode(video=0)).width == 320


@pytest.mark.parametrize("heard", [False, True], ids=["before the server hears of it", "before the first picture"])
def test_a_video_that_is_stopped_while_it_starts_does_not_begin(
    open_page: OpenPage, paint_server: str, heard: bool
) -> None:
    page = open_page(f"{paint_server}/video.html")
    sent: list[str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(str(data))))
    prompt = page.get_by_role("textbox", name="Prompt")
    prompt.fill("{stall 0}" if heard else "a red field")
    if heard:
        with page.expect_websocket() as opening:
            page.get_by_role("button", name="Start").click()
        if not sent:
            opening.value.wait_for_event("framesent")
        page.get_by_role("button", name="Stop").click()
    else:
        page.evaluate("() => ['send', 'stop'].forEach((id) => document.getElementById(id).click())")
    expect(page.locator("#link-text")).to_have_text("Ready")
    prompt.fill("a green field")
    page.get_by_role("button", name="Start").click()
    page.wait_for_function("() => streamsynth.screen.position > 0.5")
    expect_colour(page, "green")
    assert [prompt for prompt in ("stall", "red", "green") if any(prompt in each for each in sent)] == (
        ["stall", "green"] if heard else ["green"]
    )


def test_a_server_that_makes_only_video_says_so_on_the_speech_page(open_page: OpenPage, paint_server: str) -> None:
    page = open_page(paint_server)
    expect(page.get_by_role("alert").first).to_contain_text("it makes video")
    page.get_by_role("link", name="Video").click()
    expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
