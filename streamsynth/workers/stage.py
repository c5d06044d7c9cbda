"""A stage as the graph sees it: slots before a supervised worker, and nodes that run one request in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamsynth.config.deployment import StageDeployment
from streamsynth.engine.cost import Cost
from streamsynth.environment import visible_devices
from streamsynth.graph.chunk import Chunk
from streamsynth.graph.edge import ReceiveEnd
from streamsynth.graph.flow import Ports
from streamsynth.interactions.messages import Interaction, Notice
from streamsynth.workers import wire
from streamsynth.workers.connection import WorkerRequest
from streamsynth.workers.launchers import Launcher
from streamsynth.workers.slots import Load, Slots
from streamsynth.workers.supervisor import Supervisor, WorkerSpec

STALLED_PROGRESS_S = 5.0
"""A worker that steps a request in vain for this long is not ready, whatever its heartbeat says."""


MEDIA_AHEAD_S = 1.0
"""How much of another stage's media a worker may hold unused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStatistics:
    """One stage now. `beat` is its worker's last word, None while it has none."""

    running: int
    queued: int
    restarts: int
    stale_replies: int
    credit_wait_s: float
    pid: int | None
    beat: wire.Beat | None


class WorkerStage:
    """One stage of one pipeline, with its worker across all its lives."""

    def __init__(self, name: str, deployment: StageDeployment, launcher: Launcher) -> None:
        self.name = name
        self.deployment = deployment
        self.slots = Slots(
            running=deployment.max_num_seqs,
            queued=deployment.max_queued,
            timeout_s=deployment.queue_timeout_s,
            max_load=deployment.max_load,
        )
        spec = WorkerSpec(
            stage=name,
            engine=deployment.stage.engine,
            options=deployment.options,
            unit=deployment.stage.unit,
            ranks=deployment.num_gpus,
            devices=_device_names(deployment),
            threads=deployment.threads,
            start_timeout_s=deployment.start_timeout_s,
            heartbeat_timeout_s=deployment.heartbeat_timeout_s,
            stall_timeout_s=deployment.stall_timeout_s,
        )
        self.supervisor = Supervisor(spec, launcher, self._changed)

    def _changed(self) -> None:
        beat = self.supervisor.beat
        self.slots.set_load(Load() if beat is None else _load(beat))

    def unready_because(self) -> str | None:
        """Why this stage cannot serve now; None when it can. A full stage is loaded, not unready."""
        beat = self.supervisor.beat
        if beat is not None and beat.stuck_s >= STALLED_PROGRESS_S:
            return f"a runnable request made no progress for {beat.stuck_s:.0f} s"
        return self.supervisor.dead_because

    def statistics(self) -> StageStatistics:
        return StageStatistics(
            running=self.slots.held,
            queued=self.slots.queued,
            restarts=self.supervisor.restarts,
            stale_replies=self.supervisor.stale_replies,
            credit_wait_s=self.supervisor.credit_wait_s,
            pid=self.supervisor.pid,
            beat=self.supervisor.beat,
        )


def _device_names(deployment: StageDeployment) -> tuple[str, ...] | None:
    """What each rank is to see; of several on the CPU none sees a device."""
    if not deployment.devices:
        return deployment.num_gpus * ("",) if deployment.num_gpus > 1 else None
    seen = visible_devices()
    return tuple(seen[place] for place in deployment.devices)


def _load(beat: wire.Beat) -> Load:
    return Load(
        live=beat.live,
        demand=beat.demand,
        cost=Cost(shared=beat.cost_shared, each=beat.cost_each),
        behind_s=beat.behind_s,
    )


class StageRequest:
    """One request to a stage, from the place in line to the worker's last word. `run` is the body of a graph node.

    Construction raises WORKER_DIED if the stage has no worker and OVERLOADED if it is full. `settle` must be called
    when the flow has ended, whether or not `run` ever began.
    """

    def __init__(
        self,
        stage: WorkerStage,
        session: int,
        request: dict[str, Any],
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        self.finish_reason: str | None = None
        self.idle = asyncio.Event()
        self._stage = stage
        self._session = session
        self._request = request
        self._on_notice = on_notice
        self.entered = False
        _ = stage.supervisor.connection  # Raises now rather than in the flow, if there is none.
        self._ticket = stage.slots.reserve()

    async def run(self, ports: Ports) -> None:
        """Feed the one input (text, media or interactions) to the worker, whose chunks go straight to the one output.

        Media goes in at most MEDIA_AHEAD_S ahead of what the worker has used, so that its maker feels the backpressure.
        Returns when the worker has ended the request. Cancelled, it tells the worker to stop and does not wait for it.
        """
        (source,) = ports.inputs.values()
        (output,) = ports.outputs.values()
        await self._ticket.wait()
        request = self._stage.supervisor.connection.open(self._session, 0, self._request, output, self._on_notice)
        self.entered = True
        request.ended.add_done_callback(lambda _: self._become_idle())

        pump = asyncio.create_task(_pump(source, request))
        try:
            either: list[asyncio.Future[Any]] = [pump, request.ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()  # What could not be passed on is missing for ever: the worker would wait for it.
            self.finish_reason = (await asyncio.shield(request.ended)).finish_reason
        finally:
            request.cancel()
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump

    def settle(self) -> None:
        """The flow is over: if the worker never had this request, its place is free now."""
        if not self.entered:
            self._become_idle()

    def _become_idle(self) -> None:
        """The slot is free when the worker has let go of the request, not when we stopped caring."""
        self._ticket.release()
        self.idle.set()


async def _pump(source: ReceiveEnd[Any], request: WorkerRequest) -> None:
    is_fed = False
    fed = 0
    async for piece in source:
        if isinstance(piece, Chunk):
            is_fed = True
            request.feed(piece)
            fed += piece.units
            await request.wait_until_consumed(fed - round(MEDIA_AHEAD_S * piece.rate))
        elif isinstance(piece, Interaction):
            request.interact(piece)
        else:
            request.push(piece)
    if not is_fed:
        request.finish()
