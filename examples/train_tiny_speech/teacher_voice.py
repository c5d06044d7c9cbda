"""The teacher voice (hibari, "heart"), with the time of each phoneme, which its network knows and does not tell."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train_tiny_speech.frames import SAMPLE_RATE

_ALIGNMENT = "/ReduceSum_1_output_0"
"""Inside the network: which of its inputs each 25 ms of speech belong to."""

_ALIGNED_SAMPLES = SAMPLE_RATE // 40
_GRAPH, _GRAPH_OUTPUT, _VALUE_NAME = 7, 12, 1


@dataclass(frozen=True)
class TimedSpeech:
    """`spans` are where each phoneme begins and ends, in samples; sound runs about 50 ms ahead of them."""

    samples: NDArray[np.float32]
    spans: list[tuple[int, int]]


class TeacherVoice:
    def __init__(self) -> None:
        import onnxruntime
        from hibari import Hibari

        self._voice = Hibari(threads=1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        network = Path(self._voice.model_path).read_bytes() + _further_output(_ALIGNMENT)
        self._network = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])

    def phonemes(self, text: str) -> str:
        return " ".join(self._voice.phonemize(text))

    def known(self, phonemes: str) -> str:
        """Only what the network knows."""
        return "".join(phoneme for phoneme in phonemes if phoneme in self._voice.vocab)

    def speak(self, phonemes: str, *, speed: float, seed: int) -> TimedSpeech:
        """As the package speaks them, all in one go."""
        from hibari.dsp import synth

        ids = self._voice.ids(phonemes)
        inputs = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        *spectrum, alignment = self._network.run(None, inputs)
        samples = synth(*(part[0] for part in spectrum), np.random.default_rng(seed))
        inner = np.arange(1, len(ids))  # the first and the last of its inputs are silence
        edges = np.searchsorted(alignment.ravel(), inner) * _ALIGNED_SAMPLES
        return TimedSpeech(samples, list(pairwise(edges.tolist())))


def _further_output(name: str) -> bytes:
    """Bytes to put behind a model: a message that is written in parts is read as their union."""
    return _field(_GRAPH, _field(_GRAPH_OUTPUT, _field(_VALUE_NAME, name.encode())))


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content
