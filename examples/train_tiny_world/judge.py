"""The judge: what does a second of video show? Small, so that it trains in a minute on a GPU, in minutes on a CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from train_tiny_world.motion import one_hot_targets, simulate
from train_tiny_world.render import render

WINDOW = 16
"""Pictures that the judge looks at: one second."""

EVERY = 2
"""It sees every second one of them."""

_SIZES = tuple(len(values) for values in ATTRIBUTES.values())


class Judge(nn.Module):
    """Pictures (clips, `WINDOW` / `EVERY`, 3, 128, 128) from 0 to 1, to scores (clips, values) of each attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.BatchNorm2d(16),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(32),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(64),
        )
        self.motion = nn.Sequential(
            nn.Conv3d(64, 96, 3, stride=(1, 2, 2), padding=1),
            nn.ReLU(),
            nn.BatchNorm3d(96),
            nn.Conv3d(96, 128, 3, stride=(2, 1, 1), padding=1),
            nn.ReLU(),
            nn.BatchNorm3d(128),
            nn.Conv3d(128, 128, 3, stride=(2, 2, 2), padding=1),
            nn.ReLU(),
            nn.BatchNorm3d(128),
        )
        self.answers = nn.Linear(3 * 128, sum(_SIZES))

    def forward(self, pictures: Tensor) -> tuple[Tensor, ...]:
        flat = self.pictures(pictures.flatten(0, 1).sub(0.5).mul(4))
        volume = self.motion(flat.unflatten(0, pictures.shape[:2]).transpose(1, 2))
        # Where a thing is matters little, but how it goes on from one half of the second to the other does.
        halves = volume.amax((3, 4))
        seen = torch.cat([halves[..., 0], halves[..., -1], volume.mean((2, 3, 4))], 1)
        return self.answers(seen).split(_SIZES, 1)

    @torch.no_grad()
    def labels(self, pictures: Tensor, batch: int = 64) -> Tensor:
        """(clips, attributes): the likeliest value of each, of whole windows (clips, `WINDOW`, 3, 128, 128)."""
        few = pictures[:, ::EVERY].split(batch)
        return torch.cat([torch.stack([scores.argmax(1) for scores in self(part.float())], 1) for part in few])


@dataclass(frozen=True)
class JudgeBatch:
    pictures: Tensor
    labels: Tensor


def clean_batch(clips: int, generator: torch.Generator, every: int = EVERY) -> JudgeBatch:
    """Renders of scenes that stay as they are, seen from their ninth picture on; one picture of so many."""
    device = generator.device
    drawn = [torch.randint(0, size, (clips, 1), generator=generator, device=device) for size in _SIZES]
    labels = torch.stack(drawn, -1)
    tracks = simulate(one_hot_targets(labels.expand(-1, 8 + WINDOW, -1)), generator)
    return JudgeBatch(render(tracks.frames(slice(8, 8 + WINDOW, every))), labels[:, 0])


class BatchPool:
    """Rendered batches, each trained on about three times: rendering takes longer than a step."""

    _USES = 3

    def __init__(self, clips: int, capacity: int, generator: torch.Generator) -> None:
        self._clips, self._capacity, self._generator = clips, capacity, generator
        self._held: deque[JudgeBatch] = deque(maxlen=capacity)
        self._drawn = 0

    def draw(self) -> JudgeBatch:
        if self._drawn % self._USES == 0 or len(self._held) < self._capacity:
            self._held.append(clean_batch(self._clips, self._generator))
        self._drawn += 1
        return self._held[int(torch.randint(len(self._held), ()))]


def augmented(batch: JudgeBatch) -> JudgeBatch:
    """Other brightness and blur, some grain: a judge of generated pictures must not hang on the last detail."""
    pictures = batch.pictures
    rows = len(pictures)

    def each(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(rows, 1, 1, 1, 1, device=pictures.device)

    blurred = F.avg_pool2d(pictures.flatten(0, 1), 3, 1, 1, count_include_pad=False).view_as(pictures)
    pictures = torch.lerp(pictures, blurred, each(0, 1).expand_as(pictures))
    pictures = pictures * each(0.93, 1.07) + each(-0.03, 0.03) + torch.randn_like(pictures) * each(0, 0.03)
    return JudgeBatch(pictures.clamp(0, 1), batch.labels)


def accuracies(judge: Judge, batch: JudgeBatch) -> dict[str, float]:
    """The share of right answers of each attribute."""
    judge.eval()
    with torch.no_grad():
        answers = torch.stack([scores.argmax(1) for scores in judge(batch.pictures)], 1)
    right = (answers == batch.labels).float().mean(0)
    return dict(zip(ATTRIBUTES, right.tolist(), strict=True))


def train_judge(
    judge: Judge,
    batches: Callable[[], JudgeBatch | None],
    progress: Callable[[], float],
    learning_rate: float = 2e-3,
) -> int:
    """Trains until `batches` gives None; `progress` runs from 0 to 1. Returns the number of steps."""
    optimizer = torch.optim.AdamW(judge.parameters(), learning_rate, weight_decay=0.02)
    steps = 0
    judge.train()
    while (batch := batches()) is not None:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (steps + 1) / 50) * max(0.01, 1 - progress())
        batch = augmented(batch)
        on_gpu = batch.pictures.device.type == "cuda"
        with torch.autocast(batch.pictures.device.type, torch.bfloat16, enabled=on_gpu):
            scores = judge(batch.pictures)
        loss = sum(F.cross_entropy(each.float(), batch.labels[:, index]) for index, each in enumerate(scores))
        assert isinstance(loss, Tensor)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        steps += 1
    return steps


def save_judge(judge: Judge, file: Path) -> None:
    """float16, a megabyte and a half."""
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: value.half() if value.is_floating_point() else value for name, value in judge.state_dict().items()}
    save_file({name: value.cpu().contiguous() for name, value in weights.items()}, file)


def load_judge(file: Path, device: torch.device | str = "cpu") -> Judge:
    judge = Judge()
    judge.load_state_dict(load_file(file))
    return judge.to(device).eval().requires_grad_(False)


def first_seen(judge: Judge, pictures: Tensor, attribute: str, wished: Tensor, start: int, chunk: int) -> Tensor:
    """How many chunks after picture `start` the judge first sees the wished values, (clips,).

    `pictures` (clips, pictures, 3, 128, 128) go on after `start`. A clip in which they never show counts as one chunk
    more than there are.
    """
    index = list(ATTRIBUTES).index(attribute)
    ends = range(start + chunk, pictures.shape[1] + 1, chunk)
    right = torch.stack([judge.labels(pictures[:, end - WINDOW : end])[:, index] == wished for end in ends], 1)
    never = torch.full((len(right), 1), True, device=right.device)
    return torch.cat([right, never], 1).int().argmax(1) + 1
