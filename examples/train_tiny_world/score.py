"""Judges a packaged folder on any machine, through the package's engine: prompts followed, changes seen."""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.rollout.engine import RolloutEngine, RolloutStream
from streamsynth.engine.rollout.warm_up import ready_engine
from streamsynth.engine.stream import Emission
from streamsynth.interactions.messages import Interaction, Kv
from streamsynth.models.tiny_world.engine import chosen_dtype, load_world, weights_folder
from streamsynth.models.tiny_world.pipeline import SIZES
from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from streamsynth.video import VideoRequest
from train_tiny_world.clips import CHUNK_PICTURES, changed_scene, random_scene
from train_tiny_world.composing import compose
from train_tiny_world.evaluate import Steering, as_line
from train_tiny_world.judge import WINDOW, Judge, first_seen, load_judge
from train_tiny_world.scenes import Scene

Pictures = npt.NDArray[np.uint8]
"""(pictures, 128, 128, 3)."""

AT_ONCE = 4
_BEFORE, _AFTER = 6, 8


def shipped_judge() -> Judge:
    """The one that was trained beside the package's weights."""
    return load_judge(Path(__file__).parent / "judge.safetensors")


def load_engine(folder: Path, dtype: str = "auto") -> RolloutEngine:
    """As the package runs it on a CPU."""
    model = load_world(folder, dtype=chosen_dtype(dtype, "cpu"))
    measured = MeasuredDevice(KvBudget(64 << 20, None), torch.device("cpu"))
    return ready_engine(model, SIZES, measured, page_tokens=64, max_videos=AT_ONCE, float8=False)


def open_video(engine: RolloutEngine, prompt: str, seed: int) -> RolloutStream:
    [size] = SIZES
    return engine.open(VideoRequest(prompt=prompt, width=size.width, height=size.height, seed=seed).to_wire())


def watch(engine: RolloutEngine, streams: Sequence[RolloutStream], chunks: int) -> list[Pictures]:
    """The next chunks of each video."""
    made: list[list[Pictures]] = [[] for _ in streams]
    while waiting := [
        each for each, parts in zip(streams, made, strict=True) if sum(map(len, parts)) < CHUNK_PICTURES * chunks
    ]:
        for stream, emission in engine.step(waiting).made:
            if not isinstance(emission, Emission):
                raise emission
            made[[each is stream for each in streams].index(True)].append(emission.media)
    return [np.concatenate(parts) for parts in made]


def as_pictures(clip: Pictures) -> Tensor:
    """(1, pictures, 3, 128, 128) from 0 to 1, as the judge sees them."""
    return torch.from_numpy(clip).permute(0, 3, 1, 2)[None] / 255


def read(judge: Judge, clip: Pictures) -> list[int]:
    """The value of each attribute in the clip's last second."""
    labels: list[int] = judge.labels(as_pictures(clip[-WINDOW:]))[0].tolist()
    return labels


def seen_at_the_end(judge: Judge, clip: Pictures) -> dict[str, str]:
    """The same in words, by attribute."""
    return {name: values[label] for (name, values), label in zip(ATTRIBUTES.items(), read(judge, clip), strict=True)}


def prompts_followed(engine: RolloutEngine, judge: Judge, clips: int, seed: int) -> dict[str, float]:
    """The share of clips of four seconds whose last second shows what the prompt says, by attribute."""
    rng = random.Random(seed)
    scenes = [random_scene(rng) for _ in range(clips)]
    right = torch.zeros(len(ATTRIBUTES))
    for start in range(0, clips, AT_ONCE):
        some = scenes[start : start + AT_ONCE]
        prompts = [compose(scene, list(ATTRIBUTES), rng) for scene in some]
        streams = [open_video(engine, prompt, number) for number, prompt in enumerate(prompts, start)]
        for scene, clip in zip(some, watch(engine, streams, 8), strict=True):
            right += _agrees(read(judge, clip), scene)
        _close(streams)
    return dict(zip(ATTRIBUTES, (right / clips).tolist(), strict=True))


def change_followed(engine: RolloutEngine, judge: Judge, attribute: str, clips: int, seed: int) -> Steering:
    """After three seconds a prompt that says nothing but the attribute's new value comes as a cut; pages are kept."""
    rng = random.Random(seed)
    place = list(ATTRIBUTES).index(attribute)
    right, chunks = [], []
    for start in range(0, clips, AT_ONCE):
        scenes = [random_scene(rng) for _ in range(min(AT_ONCE, clips - start))]
        changed = [changed_scene(scene, [attribute], rng) for scene in scenes]
        prompts = [compose(scene, list(ATTRIBUTES), rng) for scene in scenes]
        streams = [open_video(engine, prompt, number) for number, prompt in enumerate(prompts, start)]
        before = watch(engine, streams, _BEFORE)
        for stream, scene in zip(streams, changed, strict=True):
            event = {"prompt": compose(scene, [attribute], rng)}
            stream.interact(Interaction("change", event, transition_chunks=0, kv=Kv.KEEP))
        after = watch(engine, streams, _AFTER)
        for scene, *parts in zip(changed, before, after, strict=True):
            clip = np.concatenate(parts)
            right.append(_agrees(read(judge, clip), scene))
            wished = torch.tensor([scene.labels()[place]])
            seen = first_seen(judge, as_pictures(clip), attribute, wished, _BEFORE * CHUNK_PICTURES, CHUNK_PICTURES)
            chunks.append(float(seen))
        _close(streams)
    shares = torch.stack(right).mean(0)
    others = torch.arange(len(shares)) != place
    taken = torch.tensor(chunks)
    return Steering(
        float(shares[place]), float(taken.median()), float(taken.quantile(0.9)), float(shares[others].mean())
    )


def _agrees(labels: list[int], scene: Scene) -> Tensor:
    return torch.tensor([float(seen == wished) for seen, wished in zip(labels, scene.labels(), strict=True)])


def _close(streams: Sequence[RolloutStream]) -> None:
    for stream in streams:
        stream.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=weights_folder(), help="default: the package's own")
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--changes", action="store_true", help="also change each attribute: takes 12 times as long")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(arguments.threads)
    engine, judge = load_engine(arguments.folder, arguments.dtype), shipped_judge()
    logging.info("prompts followed: %s", as_line(prompts_followed(engine, judge, arguments.clips, seed=6)))
    if arguments.changes:
        for number, attribute in enumerate(ATTRIBUTES):
            found = change_followed(engine, judge, attribute, arguments.clips, seed=7 + number)
            logging.info("change of %s: %s", attribute, as_line(asdict(found)))


if __name__ == "__main__":
    main()
