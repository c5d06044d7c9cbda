"""Rendered speech on disk: shards of whole utterances, readable while more are being written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train_tiny_speech.cuts import Cut, pack_cuts, unpack_cuts
from train_tiny_speech.frames import FRAME_SAMPLES, FRAMES_PER_SECOND

_FINISHED = "finished"


@dataclass(frozen=True)
class Utterance:
    """Corpus text, what the teacher read (phonemes), whole frames of 16-bit samples, and where they can be cut."""

    text: str
    phonemes: str
    samples: NDArray[np.int16]
    cuts: tuple[Cut, ...] = ()

    @property
    def frames(self) -> int:
        return len(self.samples) // FRAME_SAMPLES


def write_shard(folder: Path, name: str, utterances: list[Utterance]) -> None:
    """Appears under its final name only when complete."""
    draft = folder / f"{name}.draft"
    with draft.open("wb") as file:
        np.savez(
            file,
            samples=np.concatenate([u.samples for u in utterances]),
            frames=np.array([u.frames for u in utterances]),
            text=np.array([u.text for u in utterances]),
            phonemes=np.array([u.phonemes for u in utterances]),
            cuts=pack_cuts([u.cuts for u in utterances]),
        )
    draft.rename(folder / f"{name}.npz")


def read_shard(path: Path) -> list[Utterance]:
    with np.load(path) as shard:
        pieces = np.split(shard["samples"], np.cumsum(shard["frames"])[:-1] * FRAME_SAMPLES)
        return [
            Utterance(str(text), str(phonemes), samples, cuts)
            for text, phonemes, samples, cuts in zip(
                shard["text"], shard["phonemes"], pieces, unpack_cuts(shard["cuts"], len(pieces)), strict=True
            )
        ]


def mark_finished(folder: Path) -> None:
    (folder / _FINISHED).touch()


def is_finished(folder: Path) -> bool:
    return (folder / _FINISHED).exists()


class ShardReader:
    """Hands out each shard once, in the order of their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[Path] = set()

    def waiting(self) -> list[Path]:
        """Shards that have not been handed out."""
        return sorted(set(self._folder.glob("*.npz")) - self._seen)

    def unread(self, limit: int) -> list[Path]:
        """Hands out up to `limit` more."""
        fresh = self.waiting()[:limit]
        self._seen.update(fresh)
        return fresh


def hours(frames: int) -> float:
    return frames / FRAMES_PER_SECOND / 3600
