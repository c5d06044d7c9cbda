"""The sine pipeline: a real engine in a real worker whose every sample is known. Imports no engine."""

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.speech import SpeechTraits, Voice

SAMPLE_RATE = 24_000

SINE = Pipeline(
    name="sine",
    description="A continuous 440 Hz tone, 50 ms a character: for testing clients and servers",
    stages=(
        Stage(
            name="tone",
            kind=StageKind.GENERATION,
            engine="streamsynth.testing.sine:SineEngine",
            options={
                "frequency_hz": 440.0,
                "samples_per_character": 1200,
                "chunk_samples": 1920,
                "real_time": False,
                "step_ms": 0.0,
                "sample_rate": SAMPLE_RATE,
            },
        ),
    ),
    output="tone",
    traits=SpeechTraits(
        sample_rate=SAMPLE_RATE,
        voices=(Voice(id="sine", name="Sine", languages=("en",)),),
        default_voice="sine",
        speed=(0.25, 4.0),
        max_audio_seconds=4000.0,
        token="one chunk of 80 ms",
        token_samples=1920,
    ),
)
