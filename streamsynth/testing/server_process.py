"""A real `streamsynth serve` in a process of its own, for tests, load clients and the demonstration."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from streamsynth.environment import child_environment

_READY = "listening on "


class ServerProcess:
    """A server that answers at `url` once `start` has returned. Use as a context manager, or call `stop`.

    It runs `streamsynth serve --port 0 ARGS` in the caller's process group: what ends that ends it too. Everything
    here blocks, every wait has an end. `ready_s` is the time from the start of the process to its address; `orphans`
    counts worker processes that outlived the server and had to be killed.
    """

    def __init__(self, process: subprocess.Popen[str], url: str, log: IO[bytes], ready_s: float) -> None:
        self._process = process
        self._log = log
        self.url = url
        self.ready_s = ready_s
        self.orphans = 0

    @classmethod
    def start(cls, *args: str, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Self:
        """Returns when the server says that it listens; raises RuntimeError with its log if it ends or is silent."""
        started = time.monotonic()
        log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `stop`
        process = subprocess.Popen(
            [sys.executable, "-m", "streamsynth", "serve", "--port", "0", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=child_environment(env),
        )
        url = _await_url(process, timeout_s)
        server = cls(process, url or "", log, time.monotonic() - started)
        if url is None:
            status = server.kill()
            text = server.log()
            log.close()
            raise RuntimeError(f"the server did not start (exit status {status}):\n{text}")
        return server

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """What the server and its workers have written to their standard error so far."""
        handle = self._log.fileno()
        return os.pread(handle, os.fstat(handle).st_size, 0).decode(errors="replace")

    def worker_pids(self) -> list[int]:
        """The processes below the server that live now."""
        return _descendants(self.pid)

    def stop(self, timeout_s: float = 20.0) -> int:
        """Ask it to end (SIGTERM) and `wait`. Idempotent."""
        workers = _open_pidfds(self.worker_pids())
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        return self._see_off(workers, timeout_s)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Its exit status once it has ended; kills what is left of it after `timeout_s`."""
        return self._see_off(_open_pidfds(self.worker_pids()), timeout_s)

    def kill(self) -> int:
        """SIGKILL, as in a crash. Waits until the workers have ended too; `log` stays readable until `stop`."""
        workers = _open_pidfds(self.worker_pids())
        self._process.kill()
        status = self._process.wait()
        self.orphans += _reap(workers, 5.0)
        return status

    def _see_off(self, workers: list[int], timeout_s: float) -> int:
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self.orphans += _reap(workers, 5.0)
        self._log.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _await_url(process: subprocess.Popen[str], timeout_s: float) -> str | None:
    """The address that the process prints; None if it ends or stays silent. Its output is drained until it ends."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout is not None

    def drain() -> None:
        with stdout:
            for line in stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=drain, daemon=True, name="server-stdout").start()
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if line is None:
            return None
        if line.startswith(_READY):
            return line.removeprefix(_READY).strip()


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _open_pidfds(pids: list[int]) -> list[int]:
    handles = []
    for pid in pids:
        try:
            handles.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    return handles


def _reap(handles: list[int], timeout_s: float) -> int:
    """Wait for these processes to end, together at most `timeout_s`; kill the others and return how many those were."""
    deadline = time.monotonic() + timeout_s
    killed = 0
    for handle in handles:
        ended, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        if not ended:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            killed += 1
        os.close(handle)
    return killed
