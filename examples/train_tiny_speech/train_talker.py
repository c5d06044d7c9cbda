"""Trains the talker on coded speech for a given time. See README.md for the command."""

from __future__ import annotations

import argparse
import logging
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import CsmConfig

from train_tiny_speech.talker_batches import CodedSpeech, PackedBatch, PackedRows, PromptMix, load_codes
from train_tiny_speech.talker_training import TalkerSettings, TalkerTraining, load_talker, new_talker, save_talker

_HELD_OUT = 400


def held_out_batches(speech: CodedSpeech, chosen: np.ndarray, rows: int, length: int) -> dict[str, list[PackedBatch]]:
    mixes = {"characters": PromptMix(0, 1, 0), "phonemes": PromptMix(0, 0, 1)}
    return {name: list(islice(PackedRows(speech, chosen, rows, length, mix, seed=1), 1)) for name, mix in mixes.items()}


def train(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(arguments.seed)
    speech = load_codes(arguments.codes)
    order = np.random.default_rng(0).permutation(len(speech))
    held_out, chosen = order[:_HELD_OUT], order[_HELD_OUT:]
    fresh = arguments.fresh
    talker = new_talker(CsmConfig.from_pretrained(arguments.talker)) if fresh else load_talker(arguments.talker)
    talker.to(device).train()
    settings = TalkerSettings(learning_rate=arguments.learning_rate, dropout=arguments.dropout)
    codes = torch.from_numpy(speech.codes).to(device)
    training = TalkerTraining(talker, codes, settings, compiled=device.type == "cuda")
    rows = PackedRows(speech, chosen, arguments.rows, arguments.length, PromptMix(), arguments.seed)
    loader = DataLoader(rows, batch_size=None, num_workers=arguments.workers, pin_memory=device.type == "cuda")
    checks = held_out_batches(speech, held_out, arguments.rows, arguments.length)
    step, reported, saved = 0, time.monotonic(), time.monotonic()
    for batch in loader:
        elapsed = time.monotonic() - started
        if elapsed > arguments.seconds:
            break
        losses = training.step(batch, elapsed / arguments.seconds)
        step += 1
        if step % arguments.report == 0:
            rate = (time.monotonic() - reported) / arguments.report * 1e3
            logging.info("%4.0f s, step %d, %.0f ms: %s", elapsed, step, rate, losses)
            reported = time.monotonic()
        if time.monotonic() - saved > arguments.save_every:
            _check(training, checks, arguments.out)
            training.restore()
            saved = reported = time.monotonic()
    _check(training, checks, arguments.out)
    logging.info("%d steps", step)


def _check(training: TalkerTraining, checks: dict[str, list[PackedBatch]], out: Path) -> None:
    """Leaves the averaged weights in the talker."""
    talker = training.averaged()
    for name, batches in checks.items():
        logging.info("held out, %s: %s", name, training.evaluate(batches))
    save_talker(talker, out)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codes", type=Path, help="file from encode_speech")
    parser.add_argument("talker", type=Path, help="folder of the talker to start from")
    parser.add_argument("out", type=Path)
    parser.add_argument("--fresh", action="store_true", help="take only the shape of the talker, not its weights")
    parser.add_argument("--seconds", type=float, default=300, help="stop after this long, loading included")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--workers", type=int, default=8, help="processes that prepare batches")
    parser.add_argument("--save-every", type=float, default=75, help="seconds")
    parser.add_argument("--report", type=int, default=200, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
