"""The wan pipeline: a causal Wan 2.1 checkpoint in diffusers' layout. Imports no model."""

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.config.unset import UNSET
from streamsynth.graph.chunk import Unit
from streamsynth.video import Size, VideoTraits

FPS = 16
SIZES = (Size(width=832, height=480), Size(width=480, height=832))

WAN = Pipeline(
    name="wan",
    description="Causal Wan 2.1 (Self-Forcing), from a folder that you have: set rollout.folder",
    stages=(
        Stage(
            name="rollout",
            kind=StageKind.DIFFUSION,
            engine="streamsynth.models.wan.engine:load_rollouts",
            options={
                "folder": "",
                "decoder": "",
                "device": "cuda",
                "dtype": "bfloat16",
                "denoising_step_list": [1000, 750, 500, 250],
                "shift": 5.0,
                "window_frames": 12,
                "sink_frames": 3,
                "chunk_frames": 3,
                "page_tokens": 120,
                "max_videos": 2,
                "kv_cache_memory_bytes": UNSET,
                "gpu_memory_utilization": 0.9,
                "float8": False,
            },
            # A device does nothing else: two videos of 832x480 keep an H200 busy for 0.74 of a second.
            settings={"start_timeout_s": 600.0, "lead_seconds": 0.75, "max_load": 0.85},
            unit=Unit.FRAME,
            rate=FPS,
        ),
    ),
    output="rollout",
    traits=VideoTraits(
        sizes=SIZES, fps=FPS, chunk_frames=12, first_chunk_frames=9, interactions=frozenset({"prompt", "seed"})
    ),
)
