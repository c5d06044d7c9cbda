"""`bench clips`: whole clips by the engine, beside the same pipeline of diffusers called in a loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamsynth.bench.idle import Gaps
from streamsynth.bench.report import Report, Row
from streamsynth.engine.diffusion.engine import ClipEngine
from streamsynth.engine.diffusion.envelope import Envelope
from streamsynth.engine.diffusion.output import HostCopy, OutputThread
from streamsynth.engine.stream import Emission
from streamsynth.errors import invalid_value
from streamsynth.models.diffusers.abilities import Bounds, read_call
from streamsynth.models.diffusers.call import arguments, pictures
from streamsynth.models.diffusers.loading import load_pipeline
from streamsynth.models.diffusers.model import PipelineClip, PipelineModel
from streamsynth.models.diffusers.placing import Placement, place
from streamsynth.models.diffusers.proving import prove_together
from streamsynth.video import Size, VideoRequest

DIFFUSERS = "diffusers"
Pictures = npt.NDArray[np.uint8]
Side = Callable[[Sequence[VideoRequest], Gaps], list[Pictures]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipsLoad:
    """`clips` requests that are all there at the beginning of each of `rounds`, for each side. `together` are numbers
    of requests that the engine makes at once."""

    folder: Path
    size: Size
    frames: int = 1
    steps: int = 4
    clips: int = 8
    rounds: int = 3
    together: Sequence[int] = (1, 2)
    device: str = "cuda"
    dtype: str = "bfloat16"
    threads: int = 1

    def __post_init__(self) -> None:
        for count in self.together:
            if count < 1:
                raise invalid_value("together", count, "1 or more")


class MarkedOutputs(OutputThread):
    """Says where a request ends to whoever measures. Where `waiting`, the step loop stands still until pictures are on
    the host."""

    gaps: Gaps | None = None

    def __init__(self, device: torch.device, *, waiting: bool) -> None:
        super().__init__(device)
        self._waiting = waiting

    def begin(self, pictures: Tensor) -> HostCopy:
        if self.gaps is not None:
            self.gaps.end()
        copy = super().begin(pictures)
        if self._waiting:
            copy.wait()
        return copy


class MarkedModel(PipelineModel):
    """Says where a request begins to whoever measures."""

    gaps: Gaps | None = None

    def begin(self, request: VideoRequest) -> PipelineClip:
        if self.gaps is not None:
            self.gaps.begin()
        return super().begin(request)


def bench_clips(load: ClipsLoad) -> Report:
    """Blocking."""
    torch.set_num_threads(load.threads)
    device = torch.device(load.device)
    pipeline = load_pipeline(load.folder, dtype=getattr(torch, load.dtype))
    place(pipeline, Placement(), device)
    sides: dict[str, Side] = {DIFFUSERS: lambda requests, gaps: list(_called(pipeline, requests, gaps))}
    notes = []
    # Engines live as long as they would in a server, from round to round.
    with ExitStack() as opened:
        for count in sorted(set(load.together)):
            ways = {f"streamsynth, {count} at once": False}
            if count == 1:
                ways["streamsynth, waiting for copies"] = True
            for name, waiting in ways.items():
                bounds = Bounds(sizes=(load.size,), max_frames=load.frames)
                model = MarkedModel(pipeline, bounds, device=device, capacity=count)
                if count > 1 and not prove_together(model):
                    notes.append(f"{count} requests at once do not share passes of this model")
                sides[name] = _side(model, load, opened, waiting=waiting)
        rows = _rows(sides, _requests(load), load.rounds, lambda: Gaps(pipeline, device))
    settings = {"size": str(load.size)} | {
        name: getattr(load, name) for name in ("frames", "steps", "clips", "rounds", "device", "dtype", "threads")
    }
    return Report("clips", rows, notes=notes, settings=settings)


def _requests(load: ClipsLoad) -> list[VideoRequest]:
    return [
        VideoRequest(
            prompt=f"the sea, {seed}",
            width=load.size.width,
            height=load.size.height,
            num_frames=load.frames,
            steps=load.steps,
            seed=seed,
        )
        for seed in range(load.clips)
    ]


def _rows(
    sides: dict[str, Side], requests: Sequence[VideoRequest], rounds: int, new_gaps: Callable[[], Gaps]
) -> list[Row]:
    """One round after another, so that all sides see the machine as it is then; the first is not counted."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    idle: dict[str, list[float]] = {name: [] for name in sides}
    made: dict[str, list[Pictures]] = {}
    for number in range(rounds + 1):
        for name, side in sides.items():
            gaps = new_gaps()
            began = time.perf_counter()
            made[name] = side(requests, gaps)
            if number:
                took[name].append((time.perf_counter() - began) / len(requests))
                idle[name].append(gaps.idle_share)
            gaps.close()
    return [
        {
            "side": name,
            "s a clip": round(median(times), 5),
            "of diffusers' rate": round(median(took[DIFFUSERS]) / median(times), 3),
            "idle between requests": _share(idle[name]),
            "farthest from diffusers": max(map(_distance, made[name], made[DIFFUSERS])),
        }
        for name, times in took.items()
    ]


def _share(idle: Sequence[float]) -> str:
    """Of a request's time; where requests share the device there are no gaps between them."""
    return "-" if any(map(math.isnan, idle)) else f"{median(idle):.2%}"


def _called(pipeline: Any, requests: Sequence[VideoRequest], gaps: Gaps) -> Iterator[Pictures]:
    call = read_call(pipeline)
    for request in requests:
        gaps.begin()
        made = pictures(pipeline(**arguments(request, call)))
        gaps.end()
        yield made.cpu().numpy()


def _side(model: MarkedModel, load: ClipsLoad, opened: ExitStack, *, waiting: bool) -> Side:
    outputs = MarkedOutputs(model.device, waiting=waiting)
    engine = ClipEngine(model, Envelope(load.size, load.frames), outputs=outputs)
    opened.callback(engine.close)

    def make(requests: Sequence[VideoRequest], gaps: Gaps) -> list[Pictures]:
        model.gaps = outputs.gaps = gaps
        return _made(engine, requests)

    return make


def _made(engine: ClipEngine, requests: Sequence[VideoRequest]) -> list[Pictures]:
    streams = [engine.open(request.to_wire()) for request in requests]
    pieces: dict[int, list[Pictures]] = {id(stream): [] for stream in streams}
    running = set(streams)
    while running:
        ready = [stream for stream in streams if stream in running and stream.wake_at() is not None]
        for stream, made in engine.step(ready).made:
            if not isinstance(made, Emission):
                raise made
            pieces[id(stream)].append(made.media)
            if made.final:
                running = {each for each in running if each is not stream}
                stream.close()
    return [np.concatenate(each) for each in pieces.values()]


def _distance(one: Pictures, other: Pictures) -> int:
    return int(np.abs(one.astype(np.int16) - other.astype(np.int16)).max())
