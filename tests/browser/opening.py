"""What the fixtures of the browser tests hand out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from playwright.sync_api import Page

from streamsynth.testing.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


class OpenPage(Protocol):
    """Opens the page at a server's address; `before` is a script to run first, `start_seconds` what the player buffers
    before it starts if not the usual, `options` are of the browser context.
    """

    def __call__(self, url: str, *, before: str = "", start_seconds: float | None = None, **options: Any) -> Page: ...
