"""Judges a packaged folder on any machine: prompts followed by attribute, chunks after a change until it is seen."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import asdict
from pathlib import Path

import torch

from streamsynth.models.tiny_world.engine import weights_folder
from streamsynth.models.wan.prompts import load_prompt_encoder
from streamsynth.models.wan.schedule import Schedule
from streamsynth.models.wan.tiny_vae_weights import load_tiny_vae
from streamsynth.models.wan.weights import load_transformer
from train_tiny_world.evaluate import as_line, prompt_following, steering
from train_tiny_world.judge import load_judge
from train_tiny_world.rollout import World

JUDGE = Path(__file__).parent / "autoencoder" / "judge.safetensors"


def load_world(folder: Path) -> World:
    """The packaged networks, in float32 on the CPU."""
    prompts = load_prompt_encoder(folder / "text_encoder", folder / "tokenizer")
    schedule = Schedule.of_levels(json.loads((folder / "world.json").read_text())["sigmas"])
    return World(load_tiny_vae(folder / "vae"), prompts.encoder, load_transformer(folder / "transformer"), schedule)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=weights_folder(), help="default: the package's own")
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--changes", action="store_true", help="also change each attribute: takes 14 times as long")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(arguments.threads)
    world, judge = load_world(arguments.folder), load_judge(JUDGE)
    logging.info("prompts followed: %s", as_line(prompt_following(world, judge, arguments.clips, seed=6)))
    if arguments.changes:
        for attribute, found in steering(world, judge, arguments.clips, seed=7).items():
            logging.info("change of %s: %s", attribute, as_line(asdict(found)))


if __name__ == "__main__":
    main()
