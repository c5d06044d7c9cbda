"""Debian's chromium on the real server, and an ear inside the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ear import HEARABLE, Ear
from opening import OpenPage, StartServer
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """`open_page(url, **context)` opens the page in a browser context of its own; a script error fails the test."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_page(url: str, *, before: str = "", **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        if before:
            page.add_init_script(before)
        page.goto(url)
        page.wait_for_function("() => window.streamsynth")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture(scope="module")
def sine_server(shared_serve_process: StartServer) -> str:
    # Half a second a chunk: what one message brings outlasts the stalls of a crowded test machine.
    return shared_serve_process("--model", "sine", "--set", "tone.chunk_samples=12000").url


@pytest.fixture
def ear(open_page: OpenPage, sine_server: str) -> Ear:
    """The page on the sine server, with everything that its player puts out recorded."""
    return Ear(open_page(sine_server, **HEARABLE))
