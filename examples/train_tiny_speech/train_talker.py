"""Trains the talker for a given time, on coded speech that may still be growing. See README.md for the command."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import CsmConfig

from train_tiny_speech.code_store import read_codes
from train_tiny_speech.documents import ChainMix, PromptMix
from train_tiny_speech.held_out import held_out_checks
from train_tiny_speech.speech_store import ShardReader, is_finished
from train_tiny_speech.talker_batches import GrowingSpeech, PackedBatch, PackedRows
from train_tiny_speech.talker_files import load_talker, new_talker, save_talker
from train_tiny_speech.talker_training import TalkerSettings, TalkerTraining

_PLAIN_STEPS = 6


def wait_for_shards(folder: Path, count: int) -> None:
    while len(ShardReader(folder).waiting()) < count and not is_finished(folder):
        time.sleep(0.5)


def train(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(arguments.seed)
    fresh = arguments.fresh
    talker = new_talker(CsmConfig.from_pretrained(arguments.talker)) if fresh else load_talker(arguments.talker)
    talker.to(device).train()
    wait_for_shards(arguments.codes, arguments.shards)
    speech = GrowingSpeech(arguments.codes)
    rows = PackedRows(speech, arguments.rows, arguments.length, PromptMix(), ChainMix(), arguments.seed)
    loader = DataLoader(rows, batch_size=None, num_workers=arguments.workers, pin_memory=device.type == "cuda")
    held_out = [u for path in ShardReader(arguments.held_out).waiting() for u in read_codes(path)]
    checks = held_out_checks(held_out, arguments.rows, arguments.length)
    settings = TalkerSettings(learning_rate=arguments.learning_rate, dropout=arguments.dropout)
    like = next(iter(checks.values()))[0]
    training = TalkerTraining(talker, like, settings, compiled=arguments.capture)
    _check(training, checks, arguments.out)
    training.restore()
    _run(arguments, training, iter(loader), checks, started)
    _check(training, checks, arguments.out)


def _run(
    arguments: argparse.Namespace,
    training: TalkerTraining,
    batches: Iterator[PackedBatch],
    checks: dict[str, list[PackedBatch]],
    started: float,
) -> None:
    begun = reported = saved = time.monotonic()
    for step, batch in enumerate(batches):
        now = time.monotonic()
        if now - started > arguments.seconds:
            break
        losses = training.step(batch, (now - begun) / (arguments.seconds - (begun - started)))
        if step == _PLAIN_STEPS and arguments.capture:
            training.capture()
            logging.info("captured after %.0f s", now - started)
        if (step + 1) % arguments.report == 0:
            rate = (time.monotonic() - reported) / arguments.report * 1e3
            logging.info("%4.0f s, step %d, %.1f ms: %s", now - started, step + 1, rate, losses)
            reported = time.monotonic()
        if time.monotonic() - saved > arguments.save_every:
            _check(training, checks, arguments.out)
            training.restore()
            saved = reported = time.monotonic()


def _check(training: TalkerTraining, checks: dict[str, list[PackedBatch]], out: Path) -> None:
    """Leaves the averaged weights in the talker; saves first, so that a run that is stopped meanwhile has them."""
    save_talker(training.averaged(), out)
    for name, batches in checks.items():
        logging.info("held out, %s: %s", name, training.evaluate(batches))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codes", type=Path, help="folder that encode_speech fills")
    parser.add_argument("talker", type=Path, help="folder of the talker to start from")
    parser.add_argument("out", type=Path)
    parser.add_argument("--held-out", type=Path, required=True, help="folder of coded speech that is never trained on")
    parser.add_argument("--fresh", action="store_true", help="take only the shape of the talker, not its weights")
    parser.add_argument("--seconds", type=float, default=300, help="stop after this long, loading included")
    parser.add_argument("--shards", type=int, default=5, help="coded shards to wait for before starting")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--workers", type=int, default=3, help="processes that prepare batches")
    parser.add_argument(
        "--capture",
        action=argparse.BooleanOptionalAction,
        default=torch.cuda.is_available(),
        help="compile a step and make it one CUDA graph",
    )
    parser.add_argument("--save-every", type=float, default=120, help="seconds")
    parser.add_argument("--report", type=int, default=500, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
