"""Coded speech on disk: shards like those of the audio, readable while more are being written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train_tiny_speech.cuts import Cut, pack_cuts, unpack_cuts


@dataclass(frozen=True)
class CodedUtterance:
    """Corpus text, what the teacher read (phonemes), codes [frames, codebooks], and where they can be cut."""

    text: str
    phonemes: str
    codes: NDArray[np.int16]
    cuts: tuple[Cut, ...] = ()


def write_codes(folder: Path, name: str, utterances: list[CodedUtterance]) -> None:
    """Appears under its final name only when complete."""
    draft = folder / f"{name}.draft"
    with draft.open("wb") as file:
        np.savez(
            file,
            codes=np.concatenate([u.codes for u in utterances]),
            frames=np.array([len(u.codes) for u in utterances]),
            text=np.array([u.text for u in utterances]),
            phonemes=np.array([u.phonemes for u in utterances]),
            cuts=pack_cuts([u.cuts for u in utterances]),
        )
    draft.rename(folder / f"{name}.npz")


def read_codes(path: Path) -> list[CodedUtterance]:
    with np.load(path) as shard:
        pieces = np.split(shard["codes"], np.cumsum(shard["frames"])[:-1])
        return [
            CodedUtterance(str(text), str(phonemes), codes, cuts)
            for text, phonemes, codes, cuts in zip(
                shard["text"], shard["phonemes"], pieces, unpack_cuts(shard["cuts"], len(pieces)), strict=True
            )
        ]
