"""hibari's acoustic network on onnxruntime: phonemes to spectra."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import onnxruntime
from hibari.tts import ASSETS
from hibari.voices import VOICES

from streamsynth.engine.stream import Interrupted
from streamsynth.models.hibari.vocoder import Spectrum

_FATAL = 4


class Abort:
    """Ends a run of the network from another thread, and refuses all later ones."""

    def __init__(self) -> None:
        self.options = onnxruntime.RunOptions()
        # A run that is told to stop is no error to log.
        self.options.log_severity_level = _FATAL

    def set(self) -> None:
        self.options.terminate = True

    def check(self) -> None:
        """Raise Interrupted if set."""
        if self.options.terminate:
            raise Interrupted


class Network:
    """A bundled voice. `ids` are the numbers of the phonemes it knows."""

    def __init__(self, voice: str, ids: Mapping[str, int]) -> None:
        self._ids = ids
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # It would remember a plan for every length of text it has seen.
        options.enable_mem_pattern = False
        options.log_severity_level = 3
        # Never `voice_path`, which downloads what is not in the package.
        path = os.path.join(ASSETS, VOICES[voice]["file"])
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(self, phonemes: str, speed: float, abort: Abort) -> Spectrum:
        """Raises Interrupted when `abort` is set, before or meanwhile."""
        abort.check()
        inputs = {
            "ids": np.asarray([[0, *(self._ids[phoneme] for phoneme in phonemes), 0]], np.int64),
            "speed": np.asarray([speed], np.float32),
        }
        try:
            parts = self._session.run(None, inputs, abort.options)
        except Exception:
            abort.check()
            raise
        return Spectrum(*(part[0] for part in parts))
