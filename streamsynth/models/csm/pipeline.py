"""The csm pipeline: a checkpoint in Sesame's layout, talker and Mimi codec. Imports no model."""

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.config.unset import UNSET
from streamsynth.graph.chunk import Unit
from streamsynth.speech import SpeechTraits, Voice

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1920
CODEBOOKS = 32
TOKEN_RATE = CODEBOOKS * SAMPLE_RATE // FRAME_SAMPLES
"""Frames are 12.5 a second, which is no whole number: the stages count tokens."""

SPEAKERS = 10

CSM = Pipeline(
    name="csm",
    description="Sesame's CSM, from a folder that you have: set talker.folder and codec.folder",
    stages=(
        Stage(
            name="talker",
            kind=StageKind.AUTOREGRESSIVE,
            engine="streamsynth.models.csm.engine:CsmEngine",
            options={
                "folder": "",
                "voices": "",
                "device": "cuda",
                "dtype": "bfloat16",
                "temperature": 0.9,
                "depth_temperature": 0.9,
                "top_k": 50,
                "max_rows": 64,
                "max_tokens": 512,
                "max_model_len": -1,
                "context": False,
                "context_positions": 320,
                "kv_cache_memory_bytes": UNSET,
                "gpu_memory_utilization": UNSET,
                "float8": False,
            },
            settings={"start_timeout_s": 600.0, "lead_seconds": 4.0},
            unit=Unit.TOKEN,
            rate=TOKEN_RATE,
        ),
        Stage(
            name="codec",
            kind=StageKind.GENERATION,
            engine="streamsynth.models.csm.codec:CsmCodec",
            options={"folder": "", "device": "cuda", "dtype": "bfloat16", "max_streams": 64},
            # On one GPU two processes take turns of milliseconds.
            settings={"start_timeout_s": 600.0, "shares_worker": True},
            inputs=("talker",),
            rate=SAMPLE_RATE,
        ),
    ),
    output="codec",
    traits=SpeechTraits(
        sample_rate=SAMPLE_RATE,
        voices=tuple(Voice(id=str(number), name=f"Speaker {number}", languages=("en",)) for number in range(SPEAKERS)),
        default_voice="0",
        max_audio_seconds=600.0,
        token="one frame of 80 ms",
        token_samples=FRAME_SAMPLES,
    ),
)
