"""Turns rendered speech into codec codes, while it is still being rendered. See README.md for the command."""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import numpy as np
import torch

from train_tiny_speech.codec import encode, load_codec
from train_tiny_speech.speech_store import ShardReader, Utterance, hours, is_finished, read_shard

_BATCH = {"cuda": 96, "cpu": 4}
_SHARDS_AT_ONCE = 12


def save_codes(path: Path, utterances: list[tuple[str, str]], codes: list[np.ndarray]) -> None:
    """Texts and phonemes, and all frames in one array with the frame count of each utterance."""
    np.savez(
        path,
        codes=np.concatenate(codes),
        frames=np.array([len(c) for c in codes]),
        text=np.array([text for text, _ in utterances]),
        phonemes=np.array([phonemes for _, phonemes in utterances]),
    )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codec", type=Path)
    parser.add_argument("speech", type=Path, help="folder of shards; read until its rendering has finished")
    parser.add_argument("out", type=Path, help="file to write (.npz)")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    codec = load_codec(arguments.codec).to(device)
    reader, texts, codes = ShardReader(arguments.speech), list[tuple[str, str]](), list[np.ndarray]()
    while True:
        finished = is_finished(arguments.speech)  # asked before looking: nothing can appear after
        paths = reader.unread(_SHARDS_AT_ONCE)
        if not paths and finished:
            break
        utterances: list[Utterance] = [u for path in paths for u in read_shard(path)]
        utterances.sort(key=lambda u: u.frames)
        for i in range(0, len(utterances), _BATCH[device.type]):
            batch = utterances[i : i + _BATCH[device.type]]
            codes += encode(codec, [u.samples for u in batch])
            texts += [(u.text, u.phonemes) for u in batch]
        if not paths:
            time.sleep(0.5)
    save_codes(arguments.out, texts, codes)
    logging.info("%d utterances, %.1f hours", len(codes), hours(sum(map(len, codes))))


if __name__ == "__main__":
    main()
