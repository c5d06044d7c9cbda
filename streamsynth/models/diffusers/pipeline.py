"""The diffusers pipeline: whatever a folder in diffusers' layout makes. Imports no model."""

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.config.unset import UNSET
from streamsynth.graph.chunk import Unit
from streamsynth.video import VideoTraits

DIFFUSERS = Pipeline(
    name="diffusers",
    description="Images or whole clips by any diffusers pipeline, from a folder that you have: set denoiser.folder",
    stages=(
        Stage(
            name="denoiser",
            kind=StageKind.DIFFUSION,
            engine="streamsynth.models.diffusers.loading:load_clips",
            options={
                "folder": "",
                "device": "cuda",
                "dtype": "bfloat16",
                "autoencoder_dtype": UNSET,
                "sizes": [],
                "max_frames": UNSET,
                "fps": UNSET,
                "max_steps": 100,
                "max_requests": 1,
                "offload": False,
                "resident_blocks": 0,
                "sharing": "auto",
                "data_parallel_size": UNSET,
                "ulysses_degree": 1,
                "quantisation": "none",
                "ignored_layers": [],
                "step_skipping": {},
                "attention": {},
            },
            settings={
                "start_timeout_s": 1800.0,
                "heartbeat_timeout_s": 300.0,
                "stall_timeout_s": 600.0,
                "queue_timeout_s": 3600.0,
                "max_num_seqs": 64,
            },
            unit=Unit.FRAME,
            rate=16,
            ranked=True,
        ),
    ),
    output="denoiser",
    # The folder says the rest, once its worker has loaded it.
    traits=VideoTraits(
        sizes=(),
        fps=16,
        chunk_frames=1,
        first_chunk_frames=1,
        interactions=frozenset(),
        kinds=frozenset({"video", "image"}),
        realtime=False,
    ),
)
