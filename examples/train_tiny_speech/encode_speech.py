"""Turns rendered speech into codec codes, while it is still being rendered. See README.md for the command."""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import torch
from transformers import MimiModel

from train_tiny_speech.code_store import CodedUtterance, write_codes
from train_tiny_speech.codec import encode, load_codec
from train_tiny_speech.speech_store import ShardReader, Utterance, hours, is_finished, mark_finished, read_shard

_BATCH = {"cuda": 96, "cpu": 4}
_SHARDS_AT_ONCE = 12


def encode_all(codec: MimiModel, utterances: list[Utterance]) -> list[CodedUtterance]:
    """Shortest first."""
    utterances = sorted(utterances, key=lambda u: u.frames)
    size = _BATCH[codec.device.type]
    batches = [utterances[i : i + size] for i in range(0, len(utterances), size)]
    codes = [c for batch in batches for c in encode(codec, [u.samples for u in batch])]
    return [CodedUtterance(u.text, u.phonemes, c, u.cuts) for u, c in zip(utterances, codes, strict=True)]


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codec", type=Path)
    parser.add_argument("speech", type=Path, help="folder of shards; read until its rendering has finished")
    parser.add_argument("out", type=Path, help="folder for the coded shards")
    parser.add_argument("--delete-speech", action="store_true", help="delete each shard of speech once it is coded")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    codec = load_codec(arguments.codec).to("cuda" if torch.cuda.is_available() else "cpu")
    reader, shards, utterances, frames = ShardReader(arguments.speech), 0, 0, 0
    while True:
        finished = is_finished(arguments.speech)  # asked before looking: nothing can appear after
        paths = reader.unread(_SHARDS_AT_ONCE)
        if not paths and finished:
            break
        if not paths:
            time.sleep(0.5)
            continue
        coded = encode_all(codec, [u for path in paths for u in read_shard(path)])
        write_codes(arguments.out, f"codes-{shards:05}", coded)
        for path in paths if arguments.delete_speech else ():
            path.unlink()
        shards, utterances, frames = shards + 1, utterances + len(coded), frames + sum(len(u.codes) for u in coded)
    mark_finished(arguments.out)
    logging.info("%d utterances, %.1f hours", utterances, hours(frames))


if __name__ == "__main__":
    main()
