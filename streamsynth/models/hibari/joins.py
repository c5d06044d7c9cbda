"""What stands between two pieces of speech: the network's own silence is cut off, a pause of known length put there.

The network starts a piece with about 0.3 s of silence and ends it with 0.45 s, whatever follows. The pauses are what it
makes itself: the two together between sentences, and inside a sentence what it makes at such a mark, so that speech in
pieces lasts as long as speech in one go.
"""

from __future__ import annotations

import numpy as np

from streamsynth.models.hibari.vocoder import FRAME_SAMPLES, Float, Spectrum
from streamsynth.text.boundaries import Ending

SILENCE_DB = -60.0
"""A frame below this is silence; speech starts and ends far above."""

FRAMES_BEFORE = 2
FRAMES_AFTER = 2

_PAUSE_FRAMES = {
    Ending.SENTENCE: 57,
    Ending.SOFT: 28,
    Ending.COMMA: 30,
    Ending.SEMICOLON: 36,
    Ending.COLON: 28,
    Ending.DASH: 28,
    Ending.LENGTH: 2,
}


def speech_frames(spectrum: Spectrum) -> range:
    """The frames of a piece that are speech, with a little silence around; empty if there is none."""
    loud = np.flatnonzero(spectrum.loudness_db() > SILENCE_DB)
    if len(loud) == 0:
        return range(0)
    return range(max(0, int(loud[0]) - FRAMES_BEFORE), min(len(spectrum), int(loud[-1]) + 1 + FRAMES_AFTER))


def pause(ending: Ending, speed: float) -> int:
    """Frames of silence behind a piece."""
    return round(_PAUSE_FRAMES[ending] / speed)


_RAMP = np.linspace(0, 1, FRAME_SAMPLES, endpoint=False, dtype=np.float32)


def fade_in(samples: Float) -> None:
    """Ramp the first frame from silence, in place."""
    samples[:FRAME_SAMPLES] *= _RAMP[: len(samples)]


def fade_out(samples: Float) -> None:
    """Ramp the last frame to silence, in place."""
    samples[-FRAME_SAMPLES:] *= _RAMP[: len(samples)][::-1]
