"""Fixtures that every kind of test shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from streamsynth.testing.server_process import ServerProcess

# No test may reach a model hub, whatever library it goes through.
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell starts its background jobs with SIGINT ignored, and so would be the processes that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

StartServer = Callable[..., ServerProcess]


def _servers() -> Iterator[StartServer]:
    started: list[ServerProcess] = []

    def start(*args: str, env: dict[str, str] | None = None) -> ServerProcess:
        server = ServerProcess.start(*args, env=env)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()
    assert [server.orphans for server in started] == [0] * len(started), "a worker outlived its server"


@pytest.fixture
def serve_process() -> Iterator[StartServer]:
    """`serve_process("--model", "sine")` starts the real server and returns when it listens; it ends with the test."""
    yield from _servers()


@pytest.fixture(scope="module")
def shared_serve_process() -> Iterator[StartServer]:
    """As `serve_process`, for a module's own fixture that several tests share."""
    yield from _servers()
