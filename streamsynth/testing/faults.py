"""Faults on purpose: a killed worker; a link that stalls, slows or breaks; a coroutine struck at a chosen wait."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

WORKER_COMMAND = ("-m", "streamsynth.workers")
"""Part of every worker's command line, and of no other process's: this is how an operator finds one too."""


def find_workers(server_pid: int) -> list[int]:
    """The live worker processes that this server started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            arguments = (entry / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        pairs = itertools.pairwise(arguments)
        if int(parent) == server_pid and state != "Z" and WORKER_COMMAND in pairs:
            found.append(int(entry.name))
    return sorted(found)


def kill_worker(pid: int, with_signal: signal.Signals = signal.SIGKILL, *, timeout_s: float = 5.0) -> float:
    """Send the signal, wait until the process has ended, and return that time on `time.monotonic`'s clock. Blocks."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, with_signal)
        ended, _, _ = select.select([handle], [], [], timeout_s)
        if not ended:
            raise TimeoutError(f"process {pid} outlived {with_signal.name} by {timeout_s:g} s")
        return time.monotonic()
    finally:
        os.close(handle)


class FaultyLink:
    """A TCP hop in front of a server: clients connect to `port` instead of the server's own.

    `stall` lets nothing more pass towards the clients (what they send still arrives), `slow` limits that direction to a
    rate, `resume` ends both, `drop` resets every connection. The hop itself holds at most a few kilobytes a connection.
    """

    def __init__(self, server_port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, server_port)
        self._open = asyncio.Event()
        self._open.set()
        self._bytes_per_second: float | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.bytes_to_clients = 0

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server((self._target[0], 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listener.close()
        await self.drop()

    def stall(self) -> None:
        self._open.clear()

    def slow(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second

    def resume(self) -> None:
        self._bytes_per_second = None
        self._open.set()

    async def drop(self) -> None:
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self) -> None:
        while True:
            client, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            connection = asyncio.create_task(self._relay(client))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _relay(self, client: socket.socket) -> None:
        server = socket.socket()
        try:
            client.setblocking(False)
            server.setblocking(False)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.get_running_loop().sock_connect(server, self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(client, server))
                group.create_task(self._pump_to_client(server, client))
        except* OSError:
            pass  # One side is gone without a clean end: so is the other now.
        finally:
            # After two clean ends nothing is left to reset.
            for end in (client, server):
                _reset(end)

    async def _pump_to_client(self, server: socket.socket, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._open.wait()
            data = await loop.sock_recv(server, 4096)
            await self._open.wait()
            if not data:
                return client.shutdown(socket.SHUT_WR)
            await loop.sock_sendall(client, data)
            self.bytes_to_clients += len(data)
            if self._bytes_per_second is not None:
                await asyncio.sleep(len(data) / self._bytes_per_second)


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, 1 << 16):
        await loop.sock_sendall(target, data)
    target.shutdown(socket.SHUT_WR)


def _reset(end: socket.socket) -> None:
    """Close with RST instead of FIN, as when a machine or a cable goes away."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


class _Faulted(Generic[T]):
    """Awaits a coroutine and strikes at its n-th wait (from 0)."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], wait: int, error: Exception | None) -> None:
        self._coroutine = coroutine
        self._countdown = wait
        self._error = error
        self.struck = False

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._coroutine.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waited = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                result: T = stop.value
                return result
            thrown = self._strike()
            if thrown is None:
                try:
                    yield waited
                except BaseException as caught:  # noqa: BLE001  # handed to the coroutine, as awaiting it would
                    thrown = caught

    def _strike(self) -> BaseException | None:
        self._countdown -= 1
        if self._countdown != -1:
            return None
        self.struck = True
        if self._error is None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return self._error


async def fault_at(wait: int, coroutine: Coroutine[Any, Any, Any], error: Exception | None = None) -> bool:
    """Run the coroutine in a task of its own; at its wait number `wait` (from 0) cancel it, or raise `error` there.

    Returns whether it got as far as that wait. What it raises itself, other than the injected fault, is raised here.
    """
    faulted = _Faulted(coroutine, wait, error)

    async def run() -> None:
        await faulted

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        raised = task.exception()
        if raised is not None and raised is not error:
            raise raised
    return faulted.struck
