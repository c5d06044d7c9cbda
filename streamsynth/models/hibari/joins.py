"""What stands between two pieces of speech: the network's own silence is cut off, a pause of known length put there.

The network starts a piece with about 0.3 s of silence and ends it with 0.45 s (less around very short ones), whatever
follows. All of it together is the pause behind a sentence; inside a sentence the pause is what the network makes at
such a mark itself, and some of what it makes longer around it: fitted to the lengths of 380 whole sentences. So speech
in pieces lasts as long as speech in one go, but starts at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamsynth.models.hibari.vocoder import FRAME_SAMPLES, Float, Renderer, Spectrum
from streamsynth.text.boundaries import Ending

SILENCE_DB = -60.0
"""A frame of the spectrum below this is silence; speech starts and ends far above."""

FRAMES_BEFORE = 2
FRAMES_AFTER = 2
"""A frame of the spectrum sounds in the two frames of samples before it, and in the one behind it."""

FAINT = 0.003
"""Samples below this are silence, whatever the spectrum says."""

AUDIBLE = 0.01
"""Speech is clear from here on: 30 dB below a usual peak. Softer is breath, and the start of a soft consonant."""

FAINT_FRAMES = 3
"""How much of what is softer than AUDIBLE is kept: with the frame that is audible, 50 ms at most."""

_LOOK_FRAMES = 8

_PAUSE_FRAMES = {
    Ending.SOFT: 38,
    Ending.COMMA: 38,
    Ending.SEMICOLON: 45,
    Ending.COLON: 42,
    Ending.DASH: 42,
    Ending.LENGTH: 2,
}


def speech_frames(spectrum: Spectrum) -> range:
    """The frames of a piece that are speech, with a little silence around; empty if there is none."""
    loud = np.flatnonzero(spectrum.loudness_db() > SILENCE_DB)
    if len(loud) == 0:
        return range(0)
    return range(max(0, int(loud[0]) - FRAMES_BEFORE), min(len(spectrum), int(loud[-1]) + 1 + FRAMES_AFTER))


class Audible:
    """The samples of a piece from where it can be heard, faded in. What comes before is rendered and dropped."""

    def __init__(self, renderer: Renderer) -> None:
        """Takes `renderer` over, which is new, and renders until something is loud: a few frames, or all of a piece
        that has nothing loud.
        """
        self._renderer = renderer
        head = np.zeros(0, np.float32)
        peaks = head
        while renderer.left and not (peaks > AUDIBLE).any():
            head = np.concatenate((head, renderer.render(_LOOK_FRAMES)))
            peaks = np.abs(head).reshape(-1, FRAME_SAMPLES).max(1)
        start = max(0, _first(peaks > FAINT), _first(peaks > AUDIBLE) - FAINT_FRAMES)
        self._head = head[start * FRAME_SAMPLES :]
        _fade_in(self._head)

    @property
    def left(self) -> int:
        """Frames still to come."""
        return len(self._head) // FRAME_SAMPLES + self._renderer.left

    def render(self, frames: int) -> Float:
        """The next `frames` frames, or as many as are left: float32 of shape (frames * 300,)."""
        head, self._head = np.split(self._head, [frames * FRAME_SAMPLES])
        return np.concatenate((head, self._renderer.render(frames - len(head) // FRAME_SAMPLES)))


def _first(found: npt.NDArray[np.bool_]) -> int:
    """The index of the first that is true, else 0."""
    return int(found.argmax()) if len(found) else 0


def pause(ending: Ending, silent_frames: int, speed: float) -> int:
    """Frames of silence behind a piece, of which the network had made `silent_frames` silent."""
    return silent_frames if ending is Ending.SENTENCE else round(_PAUSE_FRAMES[ending] / speed)


_RAMP = np.linspace(0, 1, FRAME_SAMPLES, endpoint=False, dtype=np.float32)
_STEEP_RAMP = _RAMP[::5]


def _fade_in(samples: Float) -> None:
    """Ramp from silence over 2.5 ms, in place: a hard consonant may follow what is too faint to hear at once."""
    samples[: len(_STEEP_RAMP)] *= _STEEP_RAMP[: len(samples)]


def fade_out(samples: Float) -> None:
    """Ramp the last frame to silence, in place."""
    samples[-FRAME_SAMPLES:] *= _RAMP[: len(samples)][::-1]
