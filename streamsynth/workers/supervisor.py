"""Keeps one stage's worker alive: starts it, watches its heartbeat, and after a death kills what is left and restarts.

There is no recovery inside a worker. Its requests fail the moment its socket ends; the next worker begins with none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Unit
from streamsynth.workers import wire
from streamsynth.workers.connection import WorkerConnection
from streamsynth.workers.launchers import Launched, Launcher
from streamsynth.workers.shared import MemoryReader

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
STOP_GRACE_S = 2.0
FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 5.0
HEALTHY_AFTER_S = 30.0
"""A worker that lived this long starts the back-off from its first step again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What a stage's worker is: so many `ranks`, processes that live and die together, each of which sees one of
    `devices` (by CUDA's names), or what the server sees where that is None. `memory_bytes` of shared memory carry its
    outputs to the server."""

    stage: str
    engine: str
    options: Mapping[str, Any]
    unit: Unit = Unit.SAMPLE
    ranks: int = 1
    devices: tuple[str, ...] | None = None
    threads: int = 1
    start_timeout_s: float = 60.0
    heartbeat_timeout_s: float = 15.0
    stall_timeout_s: float = 30.0
    memory_bytes: int = 64 << 20


class Supervisor:
    """One stage's worker across its lives. `on_change` is called whenever readiness or load may have changed."""

    def __init__(self, spec: WorkerSpec, launcher: Launcher, on_change: Callable[[], None] = lambda: None) -> None:
        self.spec = spec
        self.restarts = 0
        self.beat: wire.Beat | None = None
        self.pid: int | None = None
        self.traits: dict[str, Any] | None = None
        self._launcher = launcher
        self._on_change = on_change
        self._connection: WorkerConnection | None = None
        self._failure = "not started"
        self._stale_before = 0
        self._credit_wait_before_s = 0.0
        self._lost = asyncio.Event()
        self._heard_at = 0.0
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def connection(self) -> WorkerConnection:
        """The ready worker; raises WORKER_DIED with a time to try again while there is none."""
        if self._connection is None:
            message = f"stage {self.spec.stage} is not ready: {self._failure}"
            raise StreamSynthError(ErrorCode.WORKER_DIED, message, retry_after_ms=1000)
        return self._connection

    @property
    def dead_because(self) -> str | None:
        """Why no request can be served now; None when one can."""
        return None if self._connection is not None else self._failure

    @property
    def stale_replies(self) -> int:
        """Replies for requests that no longer lived, over all lives of the worker."""
        return self._stale_before + (self._connection.stale_replies if self._connection else 0)

    @property
    def credit_wait_s(self) -> float:
        """Seconds that requests waited for their readers, over all lives of the worker."""
        return self._credit_wait_before_s + (self._connection.credit_wait_s if self._connection else 0.0)

    async def start(self) -> None:
        """Start the first worker and keep it alive from then on. Raises START_FAILED, with nothing left running."""
        self._stopping = False
        launched = await self._launch()
        self._keeper = asyncio.create_task(self._keep(launched), name=f"supervisor {self.spec.stage}")

    async def stop(self) -> None:
        """End the worker: asked first, killed after STOP_GRACE_S. Idempotent."""
        self._stopping = True
        if self._connection is not None:
            self._connection.send(wire.Stop())
        if self._keeper is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._lost.wait(), STOP_GRACE_S)
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        self._keeper = None
        if self._connection is not None:
            self._connection.close()

    async def _launch(self) -> Launched:
        """A worker that is ready. On any failure or cancellation it is killed and reaped before this returns."""
        spec = self.spec
        self._lost = asyncio.Event()
        launched = await self._spawn()
        connection: WorkerConnection | None = None
        try:
            connection = await self._connect(launched)
            async with asyncio.timeout(spec.start_timeout_s):
                ready = await connection.ready
        except BaseException as error:
            if connection is not None:
                connection.close()
            await _reap(launched)
            if isinstance(error, TimeoutError):
                message = f"stage {spec.stage} was not ready within {spec.start_timeout_s:g} s"
                raise StreamSynthError(ErrorCode.START_FAILED, message) from None
            raise
        logger.info("stage %s is ready: loaded in %.2f s, pid %s", spec.stage, ready.load_s, launched.pid)
        self.pid = launched.pid
        self.traits = ready.traits
        self._connection = connection
        self._heard_at = asyncio.get_running_loop().time()
        self._on_change()
        return launched

    async def _spawn(self) -> Launched:
        """A worker that has begun to start. Cancelled, it waits for the one that a thread is making, and ends that."""
        spec = self.spec
        call = asyncio.to_thread(
            self._launcher.launch,
            spec.stage,
            ranks=spec.ranks,
            devices=spec.devices,
            threads=spec.threads,
            memory_bytes=spec.memory_bytes,
        )
        launching = asyncio.create_task(call)
        try:
            return await asyncio.shield(launching)
        except OSError as error:
            message = f"stage {spec.stage} could not be started: {error}"
            raise StreamSynthError(ErrorCode.START_FAILED, message) from error
        except asyncio.CancelledError:
            await asyncio.wait([launching])
            if launching.exception() is None:
                launched = launching.result()
                launched.connection.close()
                os.close(launched.memory)
                await _reap(launched)
            raise

    async def _connect(self, launched: Launched) -> WorkerConnection:
        spec = self.spec
        reader = MemoryReader(launched.memory, spec.memory_bytes)
        os.close(launched.memory)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: WorkerConnection(reader, spec.unit, on_beat=self._take_beat, on_lost=self._take_loss),
            sock=launched.connection,
        )
        connection.send(
            wire.Start(
                stage=spec.stage,
                engine=spec.engine,
                options=dict(spec.options),
                memory_bytes=spec.memory_bytes,
                heartbeat_s=HEARTBEAT_S,
                heartbeat_timeout_s=spec.heartbeat_timeout_s,
                stall_timeout_s=spec.stall_timeout_s,
            )
        )
        return connection

    def _take_beat(self, beat: wire.Beat) -> None:
        self.beat = beat
        self._heard_at = asyncio.get_running_loop().time()
        self._on_change()

    def _take_loss(self) -> None:
        """The socket ended: requests have failed already, and nobody may open new ones."""
        if self._connection is not None:
            self._stale_before += self._connection.stale_replies
            self._credit_wait_before_s += self._connection.credit_wait_s
        self._connection = None
        self.beat = None
        self.pid = None
        self._failure = "stopped" if self._stopping else "its worker died and is being restarted"
        self._lost.set()
        self._on_change()

    async def _keep(self, launched: Launched) -> None:
        loop = asyncio.get_running_loop()
        back_off_s = FIRST_BACK_OFF_S
        try:
            while True:
                born = loop.time()
                await self._watch()
                await _reap(launched)
                if self._stopping:
                    return
                logger.error("stage %s died; it is being restarted", self.spec.stage)
                if loop.time() - born >= HEALTHY_AFTER_S:
                    back_off_s = FIRST_BACK_OFF_S
                while True:
                    await asyncio.sleep(back_off_s)
                    back_off_s = min(2 * back_off_s, LONGEST_BACK_OFF_S)
                    self.restarts += 1
                    try:
                        launched = await self._launch()
                        break
                    except StreamSynthError as error:
                        self._failure = error.message
                        logger.error("stage %s did not restart: %s", self.spec.stage, error.message)
        finally:
            await asyncio.shield(asyncio.ensure_future(_reap(launched)))

    async def _watch(self) -> None:
        """Return when the worker is gone, or has been silent for too long and its connection is cut."""
        loop = asyncio.get_running_loop()
        while not self._lost.is_set():
            silent_until = self._heard_at + self.spec.heartbeat_timeout_s
            if loop.time() >= silent_until:
                logger.error("stage %s sent no heartbeat for %g s", self.spec.stage, self.spec.heartbeat_timeout_s)
                self._failure = "its worker stopped answering and is being restarted"
                if self._connection is not None:
                    self._connection.close()
                await self._lost.wait()
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), silent_until - loop.time())


async def _reap(launched: Launched) -> None:
    """Kill the worker, every rank of it, and wait until it is gone. Idempotent."""
    launched.kill()
    await asyncio.to_thread(launched.wait)
