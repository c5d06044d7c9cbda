"""`StreamSynth` through both of its doors: workers of this process, and a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from streamsynth import StreamSynth
from streamsynth.testing.server_process import ServerProcess


@pytest.fixture(scope="session")
def sine_server() -> Iterator[ServerProcess]:
    with ServerProcess.start("--model", "sine") as server:
        yield server
    assert server.orphans == 0


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["local", "remote"])
async def synth(request: pytest.FixtureRequest) -> AsyncIterator[StreamSynth]:
    if request.param == "remote":
        opened = StreamSynth.connect(request.getfixturevalue("sine_server").url)
    else:
        opened = StreamSynth("sine")
    async with opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def nothing_left(synth: StreamSynth) -> Callable[[], Awaitable[None]]:
    """`await nothing_left()` returns when no session, ending or task is left of what the test began."""
    before = asyncio.all_tasks()

    async def settled() -> None:
        async with asyncio.timeout(10):
            while synth._sessions or synth._endings or asyncio.all_tasks() - before - {asyncio.current_task()}:
                await asyncio.sleep(0.005)

    return settled
