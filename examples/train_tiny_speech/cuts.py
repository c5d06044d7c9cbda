"""Where an utterance can be cut in two: at the pause behind a mark, where the teacher is silent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from train_tiny_speech.frames import FRAME_SAMPLES, SAMPLE_RATE

LEVEL_WINDOW = SAMPLE_RATE // 100
AUDIBLE_LEVEL = 0.004
LEAD_SILENCE = SAMPLE_RATE // 20
TAIL_SILENCE = SAMPLE_RATE // 10
SENTENCE_MARKS = ".?!"
CUT_MARKS = SENTENCE_MARKS + ",;:—"
_SHORTEST_PAUSE = SAMPLE_RATE * 8 // 100
_SAFE = LEVEL_WINDOW


@dataclass(frozen=True)
class Cut:
    """The first `words` words of text and phonemes end before frame `end`; the others begin with frame `start`."""

    words: int
    end: int
    start: int


def levels(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The root mean square of each 10 ms."""
    windows = samples[: len(samples) // LEVEL_WINDOW * LEVEL_WINDOW].reshape(-1, LEVEL_WINDOW)
    level: NDArray[np.float32] = np.sqrt((windows**2).mean(1))
    return level


def find_cuts(
    text: str, phonemes: str, samples: NDArray[np.float32], spans: Sequence[tuple[int, int]], first: int
) -> tuple[Cut, ...]:
    """The cuts of an utterance whose frames are counted from sample `first` of `samples`.

    `spans` are where each phoneme is spoken, in samples; a mark is one, and its pause reaches into it from the sound
    before. No cut stands where words and phonemes do not correspond, or where the teacher does not rest for 80 ms.
    """
    words = text.split(" ")
    if len(words) != len(phonemes.split(" ")):
        return ()
    quiet = _runs(levels(samples) < AUDIBLE_LEVEL)
    cuts = []
    for count, mark in _inner_marks(words, phonemes):
        pause = max((q for q in quiet if q[0] < spans[mark][1] and q[1] > spans[mark][0]), key=_length, default=(0, 0))
        if _length(pause) >= _SHORTEST_PAUSE:
            cuts.append(_cut(count, pause[0] - first, pause[1] - first))
    return tuple(cuts)


def _inner_marks(words: Sequence[str], phonemes: str) -> Iterator[tuple[int, int]]:
    """How many words end with each mark that both alphabets have, and where it stands in the phonemes."""
    end = -1
    for count, (word, pronunciation) in enumerate(zip(words[:-1], phonemes.split(" "), strict=False), 1):
        end += len(pronunciation) + 1
        if pronunciation[-1:] in CUT_MARKS and word[-1:] == pronunciation[-1:]:
            yield count, end - 1


def _runs(quiet: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where each stretch of quiet windows starts and ends, in samples."""
    edges = np.flatnonzero(np.diff(np.pad(quiet.astype(np.int8), 1))) * LEVEL_WINDOW
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _length(run: tuple[int, int]) -> int:
    return run[1] - run[0]


def _cut(words: int, quiet: int, audible: int) -> Cut:
    """As much silence at both sides as a single utterance has; in a shorter pause all of it, parted two to one."""
    end = -(-(quiet + TAIL_SILENCE) // FRAME_SAMPLES)
    start = (audible - LEAD_SILENCE) // FRAME_SAMPLES
    if end > start:
        within = range(-(-(quiet + _SAFE) // FRAME_SAMPLES), (audible - _SAFE) // FRAME_SAMPLES + 1)
        end = start = min(within, key=lambda frame: abs(3 * frame * FRAME_SAMPLES - quiet - 2 * audible))
    return Cut(words, end, start)


def pack_cuts(cuts: Sequence[Sequence[Cut]]) -> NDArray[np.int64]:
    """Of many utterances: [cuts, 4] of utterance, words, end, start."""
    rows = [(i, *astuple(cut)) for i, some in enumerate(cuts) for cut in some]
    return np.array(rows, np.int64).reshape(-1, 4)


def unpack_cuts(packed: NDArray[np.int64], utterances: int) -> list[tuple[Cut, ...]]:
    cuts: list[list[Cut]] = [[] for _ in range(utterances)]
    for utterance, *cut in packed.tolist():
        cuts[utterance].append(Cut(*cut))
    return [tuple(some) for some in cuts]
