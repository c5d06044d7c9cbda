"""The fault injector does what it says: links stall, slow and break, and a coroutine is struck at a chosen wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from streamsynth.testing.faults import FaultyLink, fault_at, find_workers, kill_worker


@contextlib.asynccontextmanager
async def pouring_server() -> AsyncIterator[int]:
    """Sends letters to every client for as long as it takes them."""

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()
        except ConnectionError:
            writer.transport.abort()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_stalled_link_passes_nothing_until_it_resumes() -> None:
    async with pouring_server() as port, FaultyLink(port) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        await reader.readexactly(5000)
        link.stall()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                while True:
                    await reader.read(1 << 20)
        passed = link.bytes_to_clients
        link.resume()
        await reader.readexactly(5000)
        assert link.bytes_to_clients > passed
        writer.transport.abort()


async def test_a_slow_link_passes_about_its_rate() -> None:
    async with pouring_server() as port, FaultyLink(port) as link:
        link.slow(100_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        started = asyncio.get_running_loop().time()
        await reader.readexactly(20_000)
        assert asyncio.get_running_loop().time() - started > 0.1
        writer.transport.abort()


async def test_a_dropped_link_resets_both_sides() -> None:
    async with pouring_server() as port, FaultyLink(port) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        await reader.readexactly(10)
        await link.drop()
        with pytest.raises(ConnectionResetError):
            while await reader.read(1 << 20):
                pass
        writer.transport.abort()


async def counted(log: list[str]) -> str:
    try:
        for turn in range(3):
            await asyncio.sleep(0)
            log.append(f"turn {turn}")
    finally:
        log.append("closed")
    return "done"


async def test_a_coroutine_is_cancelled_at_each_of_its_waits_in_turn() -> None:
    seen = []
    for wait in range(10):
        log: list[str] = []
        if not await fault_at(wait, counted(log)):
            break
        seen.append(log)
    assert seen == [["closed"], ["turn 0", "closed"], ["turn 0", "turn 1", "closed"]]
    assert log == ["turn 0", "turn 1", "turn 2", "closed"]


async def test_an_error_is_raised_at_a_chosen_wait() -> None:
    log: list[str] = []
    assert await fault_at(1, counted(log), OSError("injected"))
    assert log == ["turn 0", "closed"]


async def test_what_the_coroutine_raises_itself_is_not_hidden() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        await fault_at(5, fails())


def test_workers_are_found_by_their_command_line_and_killed() -> None:
    before = find_workers(os.getpid())
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleeper) as other, subprocess.Popen([*sleeper, "-m", "streamsynth.workers"]) as worker:
        assert set(find_workers(os.getpid())) - set(before) == {worker.pid}
        kill_worker(worker.pid)
        assert worker.wait() == -signal.SIGKILL
        assert find_workers(os.getpid()) == before
        other.kill()
