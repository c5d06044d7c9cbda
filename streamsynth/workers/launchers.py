"""How a worker comes to life: as a process, or for tests as a thread. The worker's code is the same."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from streamsynth.environment import child_environment
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.workers.run import run_worker
from streamsynth.workers.shared import create_memory


@dataclass(frozen=True, slots=True)
class Launched:
    """A worker that is starting. `connection` and `memory`, a descriptor, are the caller's to close.

    `kill` ends it at once, all its ranks, and is idempotent; `wait` blocks until it is gone. `pid` is rank 0's, None
    for a thread.
    """

    connection: socket.socket
    memory: int
    pid: int | None
    kill: Callable[[], None]
    wait: Callable[[], object]


class Launcher(Protocol):
    def launch(
        self, stage: str, *, ranks: int, devices: Sequence[str] | None, threads: int, memory_bytes: int
    ) -> Launched:
        """Start a worker that waits for its Start frame, each rank with a device of its own if there are `devices`.
        Blocks for the time of a spawn; raises OSError."""


class ProcessLauncher:
    """`python -m streamsynth.workers` in a process of its own, never forked: it inherits nothing of the server's.

    Of several ranks each is such a process; only rank 0 has the server's connection.
    """

    def launch(
        self, stage: str, *, ranks: int, devices: Sequence[str] | None, threads: int, memory_bytes: int
    ) -> Launched:
        ours, theirs = socket.socketpair()
        memory = create_memory(memory_bytes)
        started: list[subprocess.Popen[bytes]] = []
        with contextlib.ExitStack() as closing:
            closing.callback(theirs.close)
            seats = _seats(ranks, devices, closing)
            seats[0].give("--connection", theirs.fileno())
            seats[0].give("--memory", memory)
            try:
                started.extend(seat.start(stage, threads) for seat in seats)
            except OSError:
                ours.close()
                os.close(memory)
                _kill(started)
                _wait(started)
                raise
        return Launched(ours, memory, started[0].pid, partial(_kill, started), partial(_wait, started))


class _RankProcess:
    """What the process of one rank will be given."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._arguments: list[str] = []
        self._descriptors: list[int] = []

    def give(self, name: str, descriptor: int) -> None:
        self._arguments += [name, str(descriptor)]
        self._descriptors.append(descriptor)

    def seat(self, rank: int, ranks: int) -> None:
        self._arguments += ["--rank", str(rank), "--ranks", str(ranks)]

    def start(self, stage: str, threads: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "streamsynth.workers", "--stage", stage, *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=self._descriptors,
            env=child_environment({**_thread_limits(threads), **self._environment}),
        )


def _seats(ranks: int, devices: Sequence[str] | None, closing: contextlib.ExitStack) -> list[_RankProcess]:
    """Several ranks get a file without a name to meet at, and sockets between rank 0 and the others."""
    if devices is None:
        seats = [_RankProcess({}) for _ in range(ranks)]
    else:
        seats = [_RankProcess({"CUDA_VISIBLE_DEVICES": device}) for device in devices]
    if ranks == 1:
        return seats
    store = os.memfd_create("streamsynth-ranks")
    closing.callback(os.close, store)
    for rank, seat in enumerate(seats):
        seat.seat(rank, ranks)
        seat.give("--store", store)
        if rank:
            leading, following = socket.socketpair()
            closing.callback(leading.close)
            closing.callback(following.close)
            seats[0].give("--peer", leading.fileno())
            seat.give("--peer", following.fileno())
    return seats


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.wait()


class ThreadLauncher:
    """The worker in a thread of this process, for tests that look inside. `kill` cuts its connection."""

    def launch(
        self, stage: str, *, ranks: int, devices: Sequence[str] | None, threads: int, memory_bytes: int
    ) -> Launched:
        if ranks > 1:
            raise StreamSynthError(ErrorCode.START_FAILED, f"stage {stage} has {ranks} ranks: they are processes")
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
