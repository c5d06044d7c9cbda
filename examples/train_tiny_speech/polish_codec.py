"""Polishes the codec's decoder on teacher speech for a given time. See README.md for the command."""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import MimiModel

from train_tiny_speech.codec import decode, encode, load_codec
from train_tiny_speech.decoder_polish import DecoderPolish, PolishSettings
from train_tiny_speech.discriminators import Discriminators
from train_tiny_speech.frames import FRAMES_PER_SECOND
from train_tiny_speech.sound_quality import measure
from train_tiny_speech.speech_bank import SpeechBank
from train_tiny_speech.speech_store import ShardReader, Utterance, hours, is_finished, read_shard

_ENCODE_BATCH = {"cuda": 64, "cpu": 4}
_STEPS_BEFORE_CAPTURE = 12


class GrowingBank:
    """Fills a bank from shards while the teacher is still speaking; keeps the first utterances aside for listening."""

    def __init__(self, codec: MimiModel, shards: Path, bank: SpeechBank, kept_aside: int) -> None:
        self._codec, self._folder, self._reader, self._bank = codec, shards, ShardReader(shards), bank
        self._kept_aside = kept_aside
        self.aside: list[Utterance] = []

    def grow(self, limit: int = 1000) -> None:
        """Takes in up to `limit` of the shards that have appeared."""
        if self._bank.full:
            return
        for path in self._reader.unread(limit):
            utterances = read_shard(path)
            if len(self.aside) < self._kept_aside:
                self.aside += utterances
                continue
            utterances.sort(key=lambda u: u.frames)
            size = _ENCODE_BATCH[self._codec.device.type]
            for i in range(0, len(utterances), size):
                batch = utterances[i : i + size]
                self._bank.add(batch, encode(self._codec, [u.samples for u in batch]))

    def wait_for(self, frames: int) -> None:
        while self._bank.frames < frames and not (is_finished(self._folder) and not self._reader.waiting()):
            self.grow(8)
            time.sleep(0.5)


def save(codec: MimiModel, discriminators: Discriminators, folder: Path) -> None:
    """float16, as published."""
    weights = {name: value.to(torch.float16).cpu().contiguous() for name, value in codec.state_dict().items()}
    codec.save_pretrained(folder / "codec", state_dict=weights)
    judges = {name: value.to(torch.float16).cpu().contiguous() for name, value in discriminators.state_dict().items()}
    save_file(judges, folder / "discriminators.safetensors")


def listen(codec: MimiModel, utterances: list[Utterance]) -> str:
    audio = [u.samples.astype(np.float32) / 32768 for u in utterances]
    return str(measure([decode(codec, encode(codec, [u.samples])[0]) for u in utterances], audio))


def polish(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    codec = load_codec(arguments.codec).to(device)
    bank = SpeechBank(int(arguments.hours * 3600 * FRAMES_PER_SECOND), codec.config.num_quantizers, device)
    growing = GrowingBank(codec, arguments.speech, bank, kept_aside=arguments.listen)
    growing.wait_for(int(arguments.first_hours * 3600 * FRAMES_PER_SECOND))
    discriminators = Discriminators()
    if arguments.discriminators:
        discriminators.load_state_dict(load_file(arguments.discriminators))
    settings = PolishSettings(
        batch=arguments.batch,
        learning_rate=arguments.learning_rate,
        mel_weight=arguments.mel_weight,
        periodicity_weight=arguments.periodicity_weight,
    )
    training = DecoderPolish(codec, discriminators, bank, settings)
    aside = growing.aside[: arguments.listen]
    logging.info("%.2f hours at the start; before: %s", hours(bank.frames), listen(codec, aside))
    rng = np.random.default_rng(arguments.seed)
    step, reported, heard = 0, time.monotonic(), time.monotonic()
    while (elapsed := time.monotonic() - started) < arguments.seconds:
        if step == _STEPS_BEFORE_CAPTURE and device.type == "cuda" and arguments.capture:
            training.capture()
        losses = training.step(bank.draw(rng, settings.batch, settings.window), elapsed / arguments.seconds)
        step += 1
        if step % arguments.report == 0:
            rate = (time.monotonic() - reported) / arguments.report * 1e3
            logging.info("%4.0f s, step %d, %.0f ms: %s; %.1f hours", elapsed, step, rate, losses, hours(bank.frames))
            growing.grow(8)
            reported = time.monotonic()
        if time.monotonic() - heard > arguments.save_every:
            codec = training.averaged()
            logging.info("%4.0f s, averaged weights: %s", elapsed, listen(codec, aside))
            save(codec, discriminators, arguments.out)
            training.restore()
            heard = reported = time.monotonic()
    codec = training.averaged()
    save(codec, discriminators, arguments.out)
    logging.info("%d steps; after: %s", step, listen(codec, aside))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codec", type=Path, help="folder of the codec to start from")
    parser.add_argument("speech", type=Path, help="folder of rendered shards")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500, help="stop after this long, loading included")
    parser.add_argument("--hours", type=float, default=20, help="most speech to hold")
    parser.add_argument("--first-hours", type=float, default=0.5, help="speech to wait for before the first step")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--mel-weight", type=float, default=PolishSettings.mel_weight)
    parser.add_argument("--periodicity-weight", type=float, default=PolishSettings.periodicity_weight)
    parser.add_argument("--discriminators", type=Path, help="weights of an earlier run")
    parser.add_argument("--listen", type=int, default=20, help="utterances kept aside to measure on")
    parser.add_argument("--save-every", type=float, default=100, help="seconds")
    parser.add_argument("--report", type=int, default=200, help="steps")
    parser.add_argument("--capture", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=0)
    polish(parser.parse_args())


if __name__ == "__main__":
    main()
