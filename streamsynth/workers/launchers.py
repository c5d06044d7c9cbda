"""How a worker comes to life: as a process, or for tests as a thread. The worker's code is the same."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from streamsynth.environment import child_environment
from streamsynth.workers.run import run_worker
from streamsynth.workers.shared import create_memory


@dataclass(frozen=True, slots=True)
class Launched:
    """A worker that is starting. `connection` and `memory`, a descriptor, are the caller's to close.

    `kill` ends it at once and is idempotent; `wait` blocks until it is gone. `pid` is None for a thread.
    """

    connection: socket.socket
    memory: int
    pid: int | None
    kill: Callable[[], None]
    wait: Callable[[], object]


class Launcher(Protocol):
    def launch(self, stage: str, *, threads: int, memory_bytes: int) -> Launched:
        """Start a worker that waits for its Start frame. Blocks for the time of a spawn; raises OSError."""


class ProcessLauncher:
    """`python -m streamsynth.workers` in a process of its own, never forked: it inherits nothing of the server's."""

    def launch(self, stage: str, *, threads: int, memory_bytes: int) -> Launched:
        ours, theirs = socket.socketpair()
        memory = create_memory(memory_bytes)
        command = [sys.executable, "-P", "-m", "streamsynth.workers", "--stage", stage]
        command += ["--connection", str(theirs.fileno()), "--memory", str(memory)]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
                env=child_environment(_thread_limits(threads)),
            )
        except OSError:
            ours.close()
            os.close(memory)
            raise
        finally:
            theirs.close()
        return Launched(ours, memory, process.pid, process.kill, process.wait)


class ThreadLauncher:
    """The worker in a thread of this process, for tests that look inside. `kill` cuts its connection."""

    def launch(self, stage: str, *, threads: int, memory_bytes: int) -> Launched:
        ours, theirs = socket.socketpair()
        memory = create_memory(memory_bytes)
        thread = threading.Thread(
            target=run_worker,
            args=(theirs, os.dup(memory)),
            kwargs={"on_server_gone": lambda: None},
            name=f"worker {stage}",
            daemon=True,
        )

        def kill() -> None:
            with contextlib.suppress(OSError):  # Already closed by the worker itself.
                theirs.shutdown(socket.SHUT_RDWR)

        thread.start()
        return Launched(ours, memory, None, kill, thread.join)


def _thread_limits(threads: int) -> dict[str, str]:
    """The thread budget, for every library that would otherwise take all cores."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(threads))
