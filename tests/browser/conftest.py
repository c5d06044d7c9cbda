"""Debian's chromium on the real server, and an ear inside the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from ear import HEARABLE, Ear
from opening import OpenPage, StartServer
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route, sync_playwright

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    # A name that is not this machine's, for what a page from another host may not do.
    "--host-resolver-rules=MAP speech.test 127.0.0.1",
]
# What chromium itself reports when a server refuses or goes away; everything else on the console is our fault.
REFUSALS = (
    "WebSocket connection to",
    "Failed to load resource: the server responded with a status of 400",
    "Failed to load resource: the server responded with a status of 401",
    "Failed to load resource: the server responded with a status of 500",
    "net::ERR_",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Script errors, console errors (a violated content policy is one) and requests to other origins fail the test."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def note_console(message: ConsoleMessage) -> None:
        gone = "a status of 404" in message.text and "/v1/videos/" in message.location["url"]
        if message.type == "error" and not gone and not any(refusal in message.text for refusal in REFUSALS):
            faults.append(message.text)

    def open_page(url: str, *, before: str = "", start_seconds: float | None = None, **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        if start_seconds is not None:
            context.route("**/playback-core.js", lambda route: serve_with_start(route, start_seconds))
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", note_console)
        page.on("request", lambda request: faults.extend(foreign(request.url, url)))
        if before:
            page.add_init_script(before)
        page.goto(url)
        page.wait_for_function("() => window.streamsynth")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def serve_with_start(route: Route, start_seconds: float) -> None:
    """The player's core with another start buffer."""
    answer = route.fetch()
    usual = "startSeconds = 0.06"
    assert usual in answer.text()
    route.fulfill(response=answer, body=answer.text().replace(usual, f"startSeconds = {start_seconds}"))


def foreign(requested: str, page_url: str) -> list[str]:
    parts = urlsplit(requested)
    own = parts.scheme == "blob" or parts.netloc == urlsplit(page_url).netloc
    return [] if own else [f"request to {requested}"]


@pytest.fixture(scope="module")
def sine_server(shared_serve_process: StartServer) -> str:
    # Half a second a chunk: what one message brings outlasts the stalls of a crowded test machine.
    return shared_serve_process("--model", "sine", "--set", "tone.chunk_samples=12000").url


@pytest.fixture
def ear(open_page: OpenPage, sine_server: str) -> Ear:
    """The page on the sine server, with everything that its player puts out recorded."""
    return Ear(open_page(sine_server, **HEARABLE))


@pytest.fixture
def patient_ear(open_page: OpenPage, sine_server: str) -> Ear:
    """As `ear`, but a reply starts when all of it is there, so that however crowded the machine, none may run dry."""
    return Ear(open_page(sine_server, start_seconds=60, **HEARABLE))
