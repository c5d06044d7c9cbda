"""The two rates everything here is counted in."""

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 960
FRAMES_PER_SECOND = SAMPLE_RATE // FRAME_SAMPLES
