"""Where the things are: a picture's error is mostly scenery, and what a prompt says of things is a small part of it.

Weights of an error change nothing of what it is least for; they say what is learned first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from train_tiny_world.motion import SIZE, WRAP, Tracks

CELL = 8
"""Pixels of a latent's cell, each way."""


def focus(tracks: Tracks) -> Tensor:
    """(clips, frames, 16, 16) from 0 to 1: 1 in the cells that a thing touches, nothing a cell further."""
    centres = torch.arange(SIZE // CELL, device=tracks.x.device) * CELL + CELL / 2
    x, y, radius, presence = (getattr(tracks, name)[..., None, None] for name in ("x", "y", "radius", "presence"))
    across = (centres - x + WRAP / 2) % WRAP - WRAP / 2
    down = centres[:, None] - y
    beyond = torch.hypot(across, down) - 1.3 * radius
    return (((CELL - beyond) / CELL).clamp(0, 1) * (presence > 0.05)).amax(2)
