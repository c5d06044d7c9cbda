"""A diffusers stage of two ranks in this test's processes, and requests to it."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from small_pipelines.clips import Pictures, called_directly, options, request

from streamsynth.config.plan import plan
from streamsynth.flows import VideoFlow
from streamsynth.graph.edge import EndOfEdge
from streamsynth.interactions.messages import Notice, Progress
from streamsynth.runtime import Runtime
from streamsynth.testing.faults import find_workers
from streamsynth.video import VideoRequest

STAGE = "diffusers.denoiser"
SHARDED = {"offload": "true", "sharing": "sharded"}


@asynccontextmanager
async def started(folder: Path, /, *, engine: str | None = None, **changed: str) -> AsyncIterator[Runtime]:
    """`engine` in the place of the stage's own."""
    values = {**options(folder), "num_gpus": 2, "max_steps": 200, **changed}
    sets = [f"denoiser.{name}={value}".replace("'", "") for name, value in values.items()]
    (deployment,) = plan(["diffusers"], (), sets)
    if engine is not None:
        stage = deployment.stages["denoiser"]
        stage = replace(stage, stage=replace(stage.stage, engine=engine))
        deployment = replace(deployment, stages={"denoiser": stage})
    runtime = Runtime([deployment])
    await runtime.start()
    try:
        assert len(rank_pids()) == 2
        yield runtime
    finally:
        await runtime.stop()
        assert rank_pids() == {}, "a rank outlived its stage"


async def until(reached: Callable[[], bool], timeout_s: float = 20) -> None:
    """Look again until it is so: another process says it, in its own time."""
    async with asyncio.timeout(timeout_s):
        while not reached():
            await asyncio.sleep(0.005)


class Asked:
    """A request under way; `step` is the last that was told."""

    def __init__(self, runtime: Runtime, family: str = "wan", **changed: Any) -> None:
        self.request: VideoRequest = request(family, **changed)
        self.step = 0
        self.flow: VideoFlow = runtime.open_video("diffusers", self.request, self._hear)

    def _hear(self, notice: Notice) -> None:
        if isinstance(notice, Progress):
            self.step = notice.step

    async def made(self) -> Pictures:
        pieces = []
        while True:
            try:
                pieces.append((await self.flow.receive()).pictures)
            except EndOfEdge:
                return np.concatenate(pieces)

    async def reached(self, step: int) -> None:
        await until(lambda: self.step >= step)


def alone(folder: Path, asked: VideoRequest, family: str = "wan") -> Pictures:
    torch.set_num_threads(1)  # As many as each rank has: more would add up in another order.
    picture = None if asked.picture is None else Image.open(io.BytesIO(asked.picture))
    return called_directly(family, folder, asked, picture)


async def counters(runtime: Runtime) -> dict[str, int]:
    """Those of the worker's next heartbeat."""
    before = runtime.statistics().stages[STAGE].beat
    await until(lambda: runtime.statistics().stages[STAGE].beat is not before)
    beat = runtime.statistics().stages[STAGE].beat
    return {} if beat is None else dict(beat.counters)


def rank_pids(server: int | None = None) -> dict[int, int]:
    """The ranks' processes below this one, or a server's, by rank. Other tests may have workers here too."""
    found = {}
    for pid in find_workers(server or os.getpid()):
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "--rank" in arguments:
            found[int(arguments[arguments.index("--rank") + 1])] = pid
    return found
