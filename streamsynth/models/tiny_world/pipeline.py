"""The tiny-world pipeline. Imports no model."""

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.config.unset import UNSET
from streamsynth.graph.chunk import Unit
from streamsynth.video import Size, VideoTraits

FPS = 16
SIZES = (Size(width=128, height=128),)

TINY_WORLD = Pipeline(
    name="tiny-world",
    description="One to three balls, squares, triangles or stars, over a meadow, a desert, the sea, a city or space,"
    " at any hour, in any weather",
    stages=(
        Stage(
            name="rollout",
            kind=StageKind.DIFFUSION,
            engine="streamsynth.models.tiny_world.engine:load_rollouts",
            options={
                "device": "cpu",
                "dtype": "auto",
                "page_tokens": 64,
                "max_videos": 4,
                "kv_cache_memory_bytes": UNSET,
                "gpu_memory_utilization": UNSET,
                "float8": False,
            },
            settings={"lead_seconds": 0.5},
            unit=Unit.FRAME,
            rate=FPS,
        ),
    ),
    output="rollout",
    traits=VideoTraits(
        sizes=SIZES,
        fps=FPS,
        chunk_frames=8,
        first_chunk_frames=8,
        interactions=frozenset({"prompt", "seed"}),
        kinds=frozenset({"video", "image"}),
    ),
)
