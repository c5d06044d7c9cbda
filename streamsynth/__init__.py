"""StreamSynth: speech and video that leave the server while they are still being made.

The public names load on first use, so that `import streamsynth` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamsynth.api import Speech, SpeechSession, StreamSynth, Utterance
    from streamsynth.blocking import Audio, say
    from streamsynth.errors import ErrorCode, StreamSynthError
    from streamsynth.generation import GeneratedImage, GeneratedVideo
    from streamsynth.speech import AudioChunk
    from streamsynth.video import VideoChunk
    from streamsynth.video_session import VideoSession

__all__ = [
    "Audio",
    "AudioChunk",
    "ErrorCode",
    "GeneratedImage",
    "GeneratedVideo",
    "Speech",
    "SpeechSession",
    "StreamSynth",
    "StreamSynthError",
    "Utterance",
    "VideoChunk",
    "VideoSession",
    "say",
]

_HOMES = {
    "Audio": "streamsynth.blocking",
    "AudioChunk": "streamsynth.speech",
    "ErrorCode": "streamsynth.errors",
    "GeneratedImage": "streamsynth.generation",
    "GeneratedVideo": "streamsynth.generation",
    "Speech": "streamsynth.api",
    "SpeechSession": "streamsynth.api",
    "StreamSynth": "streamsynth.api",
    "StreamSynthError": "streamsynth.errors",
    "Utterance": "streamsynth.api",
    "VideoChunk": "streamsynth.video",
    "VideoSession": "streamsynth.video_session",
    "say": "streamsynth.blocking",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
