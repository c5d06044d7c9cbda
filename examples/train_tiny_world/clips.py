"""Training clips: a scene, often changed under way, with the prompts that a user would have given."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from train_tiny_world import text_tokens
from train_tiny_world.composing import compose
from train_tiny_world.scenes import Scene, scene_of

CHUNK_FRAMES = 2
"""Latent frames of a chunk."""

PICTURES = 4
"""Pictures of a latent frame."""

CHUNK_PICTURES = CHUNK_FRAMES * PICTURES


@dataclass(frozen=True)
class Script:
    """Two scenes with their prompts; `weights` says, chunk by chunk, how much the second one counts."""

    scenes: tuple[Scene, Scene]
    prompts: tuple[str, str]
    weights: tuple[float, ...]

    @property
    def switch(self) -> int:
        """The first chunk in which the second prompt counts, or the number of chunks."""
        return next((index for index, weight in enumerate(self.weights) if weight > 0), len(self.weights))


def random_scene(rng: random.Random) -> Scene:
    return scene_of([rng.randrange(len(values)) for values in ATTRIBUTES.values()])


def changed_scene(scene: Scene, attributes: list[str], rng: random.Random) -> Scene:
    """Another value for each of the attributes."""
    others = {name: [value for value in ATTRIBUTES[name] if value != getattr(scene, name)] for name in attributes}
    return replace(scene, **{name: rng.choice(values) for name, values in others.items()})


def random_script(chunks: int, rng: random.Random) -> Script:
    """A third of the scripts keep their scene. Prompts of a change say all of the new scene, or at least what changed;
    some changes come in one cut, some over two or three chunks, as the engine blends prompts."""
    names = list(ATTRIBUTES)
    first = random_scene(rng)
    said = names if rng.random() < 0.65 else _some(names, 0.6, rng)
    before = compose(first, said, rng)
    if rng.random() < 0.33:
        return Script((first, first), (before, before), (0.0,) * chunks)
    count = rng.choices((0, 1, 2, 3, len(names)), (5, 50, 20, 10, 15))[0]
    changed = rng.sample(names, count)
    second = changed_scene(first, changed, rng)
    kind = rng.random()
    if kind < 0.5 or not changed:
        said = names
    elif kind < 0.75:
        said = changed
    else:
        said = [name for name in names if name in changed or rng.random() < 0.4]
    start = rng.randrange(1, chunks)
    length = rng.choices((1, 2, 3), (70, 10, 20))[0]
    weights = tuple(min(1.0, max(0, chunk - start + 1) / length) for chunk in range(chunks))
    return Script((first, second), (before, compose(second, said, rng)), weights)


def _some(names: list[str], share: float, rng: random.Random) -> list[str]:
    return [name for name in names if rng.random() < share] or [rng.choice(names)]


def targets(scripts: list[Script], device: torch.device) -> dict[str, Tensor]:
    """The mixtures for `simulate`, picture by picture."""
    weights = torch.tensor([script.weights for script in scripts], device=device)
    weights = weights.repeat_interleave(CHUNK_PICTURES, 1)[..., None]
    labels = torch.tensor([[scene.labels() for scene in script.scenes] for script in scripts], device=device)
    mixtures = {}
    for index, (name, values) in enumerate(ATTRIBUTES.items()):
        first, second = F.one_hot(labels[:, :, index], len(values)).float().unbind(1)
        # The tiny part breaks a tie in favour of what is new.
        mixtures[name] = torch.lerp(first[:, None], second[:, None], weights + 1e-4 * (weights > 0))
    return mixtures


@dataclass(frozen=True)
class Words:
    """Token ids (prompts, length), padded with zeros, and how many of each row count."""

    tokens: Tensor
    lengths: Tensor

    def __getitem__(self, chosen: Tensor) -> Words:
        return Words(self.tokens[chosen], self.lengths[chosen])


def words(prompts: list[str], device: torch.device) -> Words:
    rows = [text_tokens.encode(prompt) for prompt in prompts]
    padded = [row + [0] * (text_tokens.TEXT_LENGTH - len(row)) for row in rows]
    return Words(torch.tensor(padded, device=device), torch.tensor([len(row) for row in rows], device=device))
