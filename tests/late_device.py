"""A device that is behind the host, and a video engine on it as a worker loads it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from rollout_driver import engine_of
from rollout_models import SmallVideoModel

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.engine.rollout.engine import RolloutEngine
from streamsynth.engine.rollout.launching import Launches
from streamsynth.graph.chunk import Unit
from streamsynth.video import Size, VideoTraits


@dataclass
class LateDevice:
    """Makes marks in order; to wait for one is to reach those before it too. A pass makes two."""

    made: int = 0
    reached: int = 0

    def __call__(self) -> LateMark:
        self.made += 1
        return LateMark(self, self.made)


@dataclass
class LateMark:
    device: LateDevice
    number: int = field(default=0)

    def reached(self) -> bool:
        return self.device.reached >= self.number

    def wait(self) -> None:
        self.device.reached = max(self.device.reached, self.number)

    def ms_since(self, other: object) -> float:
        assert isinstance(other, LateMark)
        return float(self.number - other.number)


ENGINES: list[RolloutEngine] = []
"""Those that workers of this process have loaded."""


def load() -> RolloutEngine:
    torch.set_num_threads(1)
    engine = engine_of(SmallVideoModel(), videos=2)
    engine._launches = Launches(torch.device("cpu"), LateDevice())
    ENGINES.append(engine)
    return engine


LATE = Pipeline(
    name="late",
    description="A small random model on a device that is behind",
    stages=(
        Stage(
            name="rollout",
            kind=StageKind.DIFFUSION,
            engine="late_device:load",
            options={},
            settings={},
            unit=Unit.FRAME,
            rate=SmallVideoModel.fps,
        ),
    ),
    output="rollout",
    traits=VideoTraits(
        sizes=(Size(width=32, height=32),),
        fps=SmallVideoModel.fps,
        chunk_frames=4,
        first_chunk_frames=3,
        interactions=frozenset({"prompt", "seed"}),
    ),
)
