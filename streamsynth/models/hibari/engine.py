"""hibari as an engine: English text in, a piece of speech out with each step."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.models.hibari.network import Network
from streamsynth.models.hibari.phonemes import Phonemizer, phoneme_ids
from streamsynth.models.hibari.pipeline import HIBARI, SPEED
from streamsynth.models.hibari.stream import HibariStream, Settings, Tally
from streamsynth.speech import Granularity, SpeechRequest

_WARM_UP = (
    "On the 3rd of March, at half past seven, Zyrkovia's 1,250 gardeners were told that everything which they had "
    "grown would be wanted at once."
)


class HibariEngine:
    """Loads the bundled voice and makes one utterance, so that the first request is as fast as the rest.

    `max_phonemes`: what the network takes in one go; longer sentences are cut. `first_window_frames`: how many frames
    of 12.5 ms the first emission of each piece has; the rest follow in windows of 5 s.
    """

    def __init__(self, *, max_phonemes: int = 200, first_window_frames: int = 32) -> None:
        if not 20 <= max_phonemes <= 400:
            raise invalid_value("max_phonemes", max_phonemes, "from 20 to 400")
        if not 1 <= first_window_frames <= 400:
            raise invalid_value("first_window_frames", first_window_frames, "from 1 to 400")
        self.alphabet = phoneme_ids()
        with ThreadPoolExecutor(1) as loader:
            # onnxruntime loads without the interpreter, which is busy with the dictionaries.
            network = loader.submit(Network, HIBARI.speech.default_voice, self.alphabet)
            self.phonemizer = Phonemizer(self.alphabet)
            self.network = network.result()
        self.max_phonemes = max_phonemes
        self.first_window_frames = first_window_frames
        self.tally = Tally()
        self._warm_up()

    def open(self, request: Mapping[str, Any]) -> HibariStream:
        """Raises VOICE_NOT_FOUND, UNSUPPORTED_FIELD or INVALID_VALUE."""
        asked = SpeechRequest.from_wire(dict(request))
        voices = [voice.id for voice in HIBARI.speech.voices]
        if asked.voice not in voices:
            message = f"no voice {asked.voice!r}; there are: {', '.join(voices)}"
            raise StreamSynthError(ErrorCode.VOICE_NOT_FOUND, message, param="voice")
        if not SPEED[0] <= asked.speed <= SPEED[1]:
            raise invalid_value("speed", asked.speed, f"from {SPEED[0]:g} to {SPEED[1]:g}")
        if asked.max_new_tokens is not None and asked.max_new_tokens < 1:
            raise invalid_value("max_new_tokens", asked.max_new_tokens, "at least 1")
        for name in asked.options:
            raise StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, f"hibari has no option {name!r}", param=name)
        settings = Settings(asked, self.max_phonemes, self.first_window_frames)
        return HibariStream(self.network, self.phonemizer, settings, self.tally)

    def counters(self) -> dict[str, int]:
        return self.tally.counters()

    def close(self) -> None:
        pass

    def _warm_up(self) -> None:
        request = SpeechRequest(voice=HIBARI.speech.default_voice, seed=0, granularity=Granularity.NONE)
        stream = self.open(request.to_wire())
        stream.push(_WARM_UP)
        stream.finish()
        while (emission := stream.step()) is None or not emission.final:
            pass
        stream.close()
        self.tally = Tally()
        # The dictionaries stay for good; a full collection would walk them for 40 ms in the middle of a request.
        gc.collect()
        gc.freeze()
