"""The tiny-speech pipeline: a talker that makes code frames, a codec that makes them sound. Imports no model."""

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.config.unset import UNSET
from streamsynth.graph.chunk import Unit
from streamsynth.speech import SpeechTraits, Voice

FRAME_RATE = 25
SAMPLE_RATE = 24_000

TINY_SPEECH = Pipeline(
    name="tiny-speech",
    description="English, one voice: a small autoregressive talker and its streaming codec",
    stages=(
        Stage(
            name="talker",
            kind=StageKind.AUTOREGRESSIVE,
            engine="streamsynth.models.tiny_speech.talker:TinyTalker",
            options={
                "device": "cpu",
                "dtype": "float32",
                "alphabet": "phonemes",
                "guidance": 1.5,
                "temperature": 0.5,
                "depth_temperature": 0.5,
                "top_k": 50,
                "max_rows": 32,
                "max_tokens": 256,
                "context": True,
                "context_positions": 320,
                "kv_cache_memory_bytes": UNSET,
                "gpu_memory_utilization": UNSET,
            },
            settings={"lead_seconds": 4.0},
            unit=Unit.FRAME,
            rate=FRAME_RATE,
        ),
        Stage(
            name="codec",
            kind=StageKind.GENERATION,
            engine="streamsynth.models.tiny_speech.codec:TinyCodec",
            options={"device": "cpu", "dtype": "float32", "gain": 1.0, "max_streams": 64},
            inputs=("talker",),
            rate=SAMPLE_RATE,
        ),
    ),
    output="codec",
    traits=SpeechTraits(
        sample_rate=SAMPLE_RATE,
        voices=(Voice(id="tiny", name="Tiny", languages=("en",)),),
        default_voice="tiny",
        speed=(0.5, 1.5),
        max_audio_seconds=14_400.0,
        token="one frame of 40 ms",
        token_samples=SAMPLE_RATE // FRAME_RATE,
    ),
)
