"""What stands between two pieces of speech: the network's own silence is cut off, a pause of known length put there.

The network starts a piece with about 0.3 s of silence and ends it with 0.45 s (less around very short ones), whatever
follows. All of it together is the pause behind a sentence; inside a sentence the pause is about what the network makes
at such a mark itself. So speech in pieces lasts as long as speech in one go, but starts at once.
"""

from __future__ import annotations

import numpy as np

from streamsynth.models.hibari.vocoder import FRAME_SAMPLES, Float, Spectrum
from streamsynth.text.boundaries import Ending

SILENCE_DB = -60.0
"""A frame below this is silence; speech starts and ends far above."""

FRAMES_BEFORE = 1
FRAMES_AFTER = 2

_PAUSE_FRAMES = {
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


def pause(ending: Ending, silent_frames: int, speed: float) -> int:
    """Frames of silence behind a piece, of which the network had made `silent_frames` silent."""
    return silent_frames if ending is Ending.SENTENCE else round(_PAUSE_FRAMES[ending] / speed)


_RAMP = np.linspace(0, 1, FRAME_SAMPLES, endpoint=False, dtype=np.float32)


def fade_in(samples: Float) -> None:
    """Ramp the first frame from silence, in place."""
    samples[:FRAME_SAMPLES] *= _RAMP[: len(samples)]


def fade_out(samples: Float) -> None:
    """Ramp the last frame to silence, in place."""
    samples[-FRAME_SAMPLES:] *= _RAMP[: len(samples)][::-1]
