"""Tables of embeddings whose weights are loaded."""

from __future__ import annotations

import torch
from torch import nn


def loaded_embedding(rows: int, width: int) -> nn.Embedding:
    """Its weights are whatever is in memory until they are loaded. `nn.Embedding` would draw them, and on the meta
    device that imports the compiler: 1.3 s of every start."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)
