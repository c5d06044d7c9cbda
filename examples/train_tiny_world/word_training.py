"""The text encoder's own lesson, before there are pictures: which value does a prompt give to each attribute, if any?

Pictures teach words slowly: a thing's colour is a small part of a picture's error. Prompts alone teach them in seconds.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from streamsynth.models.wan.text_encoder import TextEncoder
from train_tiny_world.clips import random_scene, words
from train_tiny_world.composing import compose

_ANSWERS = tuple(len(values) + 1 for values in ATTRIBUTES.values())
"""Of each attribute: its values, and that nothing is said of it."""


class WordTraining:
    """Trains `encoder` in place, with a linear head on the mean of each prompt's embeddings."""

    def __init__(self, encoder: TextEncoder, prompts: int, seed: int) -> None:
        device = encoder.embedding.weight.device
        self._encoder = encoder
        self._head = nn.Linear(encoder.config.d_model, sum(_ANSWERS), device=device)
        self._rng = random.Random(seed)
        texts, labels = zip(*(self._prompt() for _ in range(prompts)), strict=True)
        self._words, self._labels = words(list(texts), device), torch.tensor(labels, device=device)
        weights = [*encoder.parameters(), *self._head.parameters()]
        self._optimizer = torch.optim.AdamW(weights, 1e-3, (0.9, 0.97), weight_decay=0.02)

    def _prompt(self) -> tuple[str, list[int]]:
        scene, names = random_scene(self._rng), list(ATTRIBUTES)
        said = self._rng.sample(names, self._rng.randint(1, len(names)))
        labels = scene.labels()
        known = [label if name in said else len(ATTRIBUTES[name]) for name, label in zip(names, labels, strict=True)]
        return compose(scene, said, self._rng), known

    def step(self, prompts: int, progress: float) -> Tensor:
        """The share of attributes that were read right, before the step."""
        chosen = torch.randint(len(self._labels), (prompts,), device=self._labels.device)
        said, labels = self._words[chosen], self._labels[chosen]
        made = self._encoder(said.tokens, said.lengths)
        scores = self._head(made.sum(1) / said.lengths[:, None]).split(_ANSWERS, 1)
        loss = sum(F.cross_entropy(each, labels[:, index]) for index, each in enumerate(scores))
        assert isinstance(loss, Tensor)
        for group in self._optimizer.param_groups:
            group["lr"] = 1e-3 * max(0.05, 1 - progress)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._encoder.parameters(), 1.0)
        self._optimizer.step()
        right = torch.stack([each.argmax(1) == labels[:, index] for index, each in enumerate(scores)])
        return right.float().mean()
