"""A small network with blocks, and the inputs that offloading is tried with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Its tensors have odd sizes, and end on no boundary. With `fails`, the next pass through it raises."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 3 * size), nn.Linear(3 * size, size)
        self.register_buffer("gain", torch.full((1,), 0.5), persistent=False)
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x))
        if self.fails:
            self.fails = False
            raise ValueError("injected")
        return x + self.gain * self.down(F.gelu(hidden))


class Network(nn.Module):
    def __init__(self, blocks: int = 5, size: int = 33) -> None:
        super().__init__()
        self.first = nn.Linear(7, size)
        self.blocks = nn.ModuleList(Block(size) for _ in range(blocks))
        self.last = nn.Linear(size, 7)
        self.runs = list(range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for number in self.runs:
            x = self.blocks[number](x)
        return self.last(x)


def network(blocks: int = 5, size: int = 33, seed: int = 0) -> Network:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    torch.manual_seed(seed)
    return Network(blocks, size).eval()


def given(rows: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(rows, 7, generator=torch.Generator().manual_seed(seed))
