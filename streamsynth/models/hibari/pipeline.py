"""The embedded English voice: one stage, text to samples. Imports no model."""

from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.speech import SpeechTraits, Voice

SAMPLE_RATE = 24_000
TOKEN_SAMPLES = 300
SPEED = (0.5, 2.0)
MAX_AUDIO_SECONDS = 14_400.0

HIBARI = Pipeline(
    name="hibari",
    description="American English, one voice, inside the package; a CPU core makes it many times faster than it plays",
    stages=(
        Stage(
            name="voice",
            kind=StageKind.GENERATION,
            engine="streamsynth.models.hibari.engine:HibariEngine",
            options={"max_phonemes": 200, "first_window_frames": 32},
        ),
    ),
    output="voice",
    traits=SpeechTraits(
        sample_rate=SAMPLE_RATE,
        voices=(Voice(id="heart", name="Heart", languages=("en-US",)),),
        default_voice="heart",
        speed=SPEED,
        max_audio_seconds=MAX_AUDIO_SECONDS,
        token="one frame of 12.5 ms",
        token_samples=TOKEN_SAMPLES,
    ),
)
