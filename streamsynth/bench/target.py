"""The server that is measured: one of our own in a process beside this one, or one that runs already."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from streamsynth.testing.faults import find_workers
from streamsynth.testing.server_process import ServerProcess

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Target:
    """`pid` is None for a server of somebody else's: its memory cannot be seen from here."""

    url: str
    api_key: str | None = None
    pid: int | None = None
    ready_s: float | None = None

    def processes(self) -> dict[str, int]:
        """Name to process id: the server and its workers."""
        if self.pid is None:
            return {}
        workers = find_workers(self.pid)
        names = ["worker"] if len(workers) == 1 else [f"worker {number}" for number in range(len(workers))]
        return {"server": self.pid, **dict(zip(names, workers, strict=True))}


@contextlib.contextmanager
def target(url: str | None, api_key: str | None, *arguments: str, start_timeout_s: float = 60.0) -> Iterator[Target]:
    """The server at `url`; None starts `serve` with `arguments`, which ends with the context. Blocks."""
    if url is not None:
        yield Target(url, api_key)
        return
    with ServerProcess.start(*arguments, timeout_s=start_timeout_s) as server:
        yield Target(server.url, None, server.pid, server.ready_s)
    if server.orphans:
        raise RuntimeError(f"{server.orphans} workers outlived the server")


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
