"""The paint pipeline: a real engine in a real worker whose every picture is known. Imports no engine."""

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.graph.chunk import Unit
from streamsynth.video import Size, VideoTraits

FPS = 16
CHUNK_FRAMES = 12
FIRST_CHUNK_FRAMES = 9

PAINT = Pipeline(
    name="paint",
    description="A square that wanders over the colour that its prompt names: for testing clients and servers",
    stages=(
        Stage(
            name="brush",
            kind=StageKind.DIFFUSION,
            engine="streamsynth.testing.paint:PaintEngine",
            options={"real_time": False, "step_ms": 0.0},
            settings={"lead_seconds": 1 / FPS},
            unit=Unit.FRAME,
            rate=FPS,
        ),
    ),
    output="brush",
    traits=VideoTraits(
        sizes=(
            Size(width=320, height=192),
            Size(width=128, height=128),
            Size(width=832, height=480),
        ),
        fps=FPS,
        chunk_frames=CHUNK_FRAMES,
        first_chunk_frames=FIRST_CHUNK_FRAMES,
        interactions=frozenset({"prompt", "seed"}),
        kinds=frozenset({"video", "image"}),
    ),
)
