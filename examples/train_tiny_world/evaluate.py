"""What the judge says of generated clips: prompts followed, changes seen, and how long a rollout stays what it is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from train_tiny_world.clips import CHUNK_PICTURES, changed_scene, random_scene
from train_tiny_world.composing import compose
from train_tiny_world.judge import WINDOW, Judge, first_seen
from train_tiny_world.rollout import World, embed, roll_out, show
from train_tiny_world.scenes import Scene

_WINDOW_CHUNKS = WINDOW // CHUNK_PICTURES


def _labels(scenes: list[Scene], device: torch.device) -> Tensor:
    return torch.tensor([scene.labels() for scene in scenes], device=device)


def _scenes(count: int, seed: int) -> tuple[list[Scene], list[str]]:
    rng = random.Random(seed)
    scenes = [random_scene(rng) for _ in range(count)]
    return scenes, [compose(scene, list(ATTRIBUTES), rng) for scene in scenes]


def prompt_following(world: World, judge: Judge, clips: int, seed: int) -> dict[str, float]:
    """The share of clips of four seconds whose last second shows what the prompt says, by attribute."""
    scenes, prompts = _scenes(clips, seed)
    latents = roll_out(world, [embed(world, prompts)] * 8, seed)
    seen = judge.labels(show(world, latents)[:, -WINDOW:])
    right = (seen == _labels(scenes, world.device)).float().mean(0)
    return dict(zip(ATTRIBUTES, right.tolist(), strict=True))


def first_chunks_following(world: World, judge: Judge, clips: int, seed: int) -> dict[str, float]:
    """The same of first chunks, seen twice in a row: all but what motion they show."""
    scenes, prompts = _scenes(clips, seed)
    pictures = show(world, roll_out(world, [embed(world, prompts)], seed))
    right = (judge.labels(pictures.repeat(1, _WINDOW_CHUNKS, 1, 1, 1)) == _labels(scenes, world.device)).float().mean(0)
    return {name: share for name, share in zip(ATTRIBUTES, right.tolist(), strict=True) if name != "motion"}


@dataclass(frozen=True)
class Steering:
    """After a change of one attribute: the share of clips that show it after four seconds, the median and the worst of
    the better nine tenths of the chunks until it is first seen, and the share of the other attributes that stay."""

    seen: float
    median_chunks: float
    p90_chunks: float
    kept: float


def steering(world: World, judge: Judge, clips: int, seed: int) -> dict[str, Steering]:
    """A prompt that says the whole new scene comes as a cut after three seconds; contexts are kept."""
    found = {}
    before, after = 6, 8
    for number, attribute in enumerate(ATTRIBUTES):
        rng = random.Random(seed + number)
        scenes, prompts = _scenes(clips, seed + number)
        changed = [changed_scene(scene, [attribute], rng) for scene in scenes]
        next_prompts = [compose(scene, list(ATTRIBUTES), rng) for scene in changed]
        texts = [embed(world, prompts)] * before + [embed(world, next_prompts)] * after
        pictures = show(world, roll_out(world, texts, seed + number))
        wished = _labels(changed, world.device)
        chunks = first_seen(
            judge, pictures, attribute, wished[:, number], before * CHUNK_PICTURES, CHUNK_PICTURES
        ).float()
        right = judge.labels(pictures[:, -WINDOW:]) == wished
        others = torch.tensor([index != number for index in range(len(ATTRIBUTES))], device=right.device)
        found[attribute] = Steering(
            float(right[:, number].float().mean()),
            float(chunks.median()),
            float(chunks.quantile(0.9)),
            float(right[:, others].float().mean()),
        )
    return found


def drift(world: World, judge: Judge, clips: int, seconds: int, seed: int) -> list[tuple[int, float, float]]:
    """(second, share of right answers over all attributes, spread of the latents) along one long rollout."""
    scenes, prompts = _scenes(clips, seed)
    latents = roll_out(world, [embed(world, prompts)] * (2 * seconds), seed)
    wished = _labels(scenes, world.device)
    found = []
    for second in sorted({2, 5, 10, 20, 30, 45, seconds}):
        if second > seconds:
            break
        end = 4 * second
        some = latents[:, max(0, end - 8) : end]
        right = judge.labels(show(world, some)[:, -WINDOW:]) == wished
        found.append((second, float(right.float().mean()), float(some.std())))
    return found


def contact_sheet(world: World, prompts: list[tuple[str, str]], file: Path, seed: int) -> None:
    """A row a pair of prompts: pictures of four seconds of the first and four of the second."""
    first, second = (embed(world, [pair[side] for pair in prompts]) for side in (0, 1))
    pictures = show(world, roll_out(world, [first] * 8 + [second] * 8, seed))[:, 3::10]
    rows, columns = pictures.shape[:2]
    sheet = pictures.permute(0, 3, 1, 4, 2).reshape(rows * 128, columns * 128, 3)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((sheet * 255).round().byte().cpu().numpy()).save(file)


def as_line(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())
