"""The bundled voice, loaded once for all the tests that make it speak."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from streamsynth.engine.stream import Emission
from streamsynth.models.hibari.engine import HibariEngine
from streamsynth.models.hibari.stream import HibariStream
from streamsynth.models.hibari.vocoder import Float
from streamsynth.speech import Granularity, SpeechRequest


@functools.cache
def voice() -> HibariEngine:
    return HibariEngine()


def open_stream(
    *,
    speed: float = 1.0,
    seed: int | None = 1,
    max_new_tokens: int | None = None,
    granularity: Granularity = Granularity.NONE,
) -> HibariStream:
    request = SpeechRequest(
        voice="heart", speed=speed, seed=seed, max_new_tokens=max_new_tokens, granularity=granularity
    )
    return voice().open(request.to_wire())


def drain(stream: HibariStream) -> list[Emission]:
    """What the stream can make of the text it has."""
    made: list[Emission] = []
    while stream.wake_at() is not None and not (made and made[-1].final):
        emission = stream.step()
        if emission is not None:
            made.append(emission)
    return made


def speak(text: str | Iterable[str], **options: object) -> list[Emission]:
    """Everything an utterance makes when its text comes in these pieces and is spoken as early as it can be."""
    stream = open_stream(**options)  # type: ignore[arg-type]  # the options of open_stream
    made: list[Emission] = []
    for piece in [text] if isinstance(text, str) else text:
        stream.push(piece)
        made += drain(stream)
    stream.finish()
    made += drain(stream)
    stream.close()
    return made


def audio(emissions: Iterable[Emission]) -> Float:
    return np.concatenate([np.zeros(0, np.float32), *(emission.media for emission in emissions)])
