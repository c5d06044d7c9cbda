"""Brushes: soft edges, layers and scattered points, for pictures (frames, 3, height, width) from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from train_tiny_world.motion import SIZE


@cache
def grid(device: torch.device) -> tuple[Tensor, Tensor]:
    """x and y of the pixels' centres, (1, height, width)."""
    line = torch.arange(SIZE, device=device, dtype=torch.float32) + 0.5
    y, x = torch.meshgrid(line, line, indexing="ij")
    return x[None], y[None]


@cache
def _dice(device: torch.device) -> Tensor:
    return torch.rand(4096, generator=torch.Generator().manual_seed(7)).to(device)


def chance(*keys: Tensor | int) -> Tensor:
    """From 0 to 1: the same for the same whole numbers."""
    mixed: Tensor | int = 0
    for key, prime in zip(keys, (73856093, 19349663, 83492791, 49979687), strict=False):
        whole = key.long() if isinstance(key, Tensor) else key
        mixed = mixed ^ (whole * prime) if isinstance(mixed, Tensor) else whole * prime ^ mixed
    assert isinstance(mixed, Tensor)
    return _dice(mixed.device)[(mixed ^ (mixed >> 7)) & 4095]


def cover(distance: Tensor, softness: float = 1.0) -> Tensor:
    """How much of a pixel lies inside, by its signed distance in pixels (negative inside)."""
    return (0.5 - distance / softness).clamp(0, 1)


def smooth(x: Tensor, low: float, high: float) -> Tensor:
    t = ((x - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def colours(table: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of 0 to 255 to (rows, 3) from 0 to 1."""
    return torch.tensor(table, device=device, dtype=torch.float32) / 255


def mixed(weights: Tensor, table: Sequence[Sequence[int]]) -> Tensor:
    """(frames, 3, 1, 1): the table's colours mixed by (frames, rows) weights."""
    return (weights @ colours(table, weights.device))[:, :, None, None]


def over(picture: Tensor, colour: Tensor, alpha: Tensor) -> Tensor:
    """`alpha` (frames, height, width)."""
    return torch.lerp(picture, colour.expand_as(picture), alpha[:, None].expand_as(picture))


def column(values: Tensor) -> Tensor:
    """(frames,) to (frames, 1, 1)."""
    return values[:, None, None]


def points(x: Tensor, y: Tensor, cell: float, radius: float, seed: int, share: float = 1.0) -> tuple[Tensor, Tensor]:
    """One round point in each cell of a grid, in `share` of the cells: its cover, and the cell's own chance."""
    col, row = torch.floor(x / cell), torch.floor(y / cell)
    reach = cell / 2 - radius - 0.5
    across = (chance(col, row, seed) * 2 - 1) * reach
    down = (chance(col, row, seed + 1) * 2 - 1) * reach
    away = torch.hypot(x - (col + 0.5) * cell - across, y - (row + 0.5) * cell - down)
    own = chance(col, row, seed + 2)
    return cover(away - radius) * (own < share), own / share
