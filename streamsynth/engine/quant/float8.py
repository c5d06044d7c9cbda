"""Float8 e4m3 with one scale: the same bytes on every device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from streamsynth.errors import invalid_value

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0
_PIECE = 1 << 22
# Another one whenever the same weights would give other bytes.
QUANTISER_VERSION = 1


@dataclass(frozen=True, slots=True)
class Float8:
    """`values` times `scale`, a float32 of shape (1,)."""

    values: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        return self.values.float() * self.scale


def quantised_weight(weight: Tensor, name: str) -> Float8:
    """On the weight's device. Raises INVALID_VALUE, with `name`, for a weight that is not finite."""
    found = quantised(weight)
    if not bool(torch.isfinite(found.scale)):
        raise invalid_value(name, float(found.scale), "finite everywhere, to be quantised")
    return found


def quantised(x: Tensor) -> Float8:
    """Every operation is exact or rounds once, as IEEE says, so a GPU and the CPU give the same bytes: the largest
    value as it is, two divisions of single floats, one product an element, one conversion to the nearest even."""
    scale = scale_of(x)
    return Float8(scaled(x, scale), scale)


def scale_of(x: Tensor) -> Tensor:
    """Of the largest magnitude; 1 for nothing but zeros."""
    low, high = torch.aminmax(x.detach())
    largest = torch.maximum(-low, high).float().reshape(1)
    scale = largest / torch.full_like(largest, FLOAT8_MAX)
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    """In pieces: what is in float32 on the way is small beside a weight."""
    values, factor = torch.empty(x.shape, dtype=FLOAT8, device=x.device), scale.reciprocal()
    for given, made in zip(x.reshape(-1).split(_PIECE), values.view(-1).split(_PIECE), strict=True):
        made.copy_((given.float() * factor).clamp_(-FLOAT8_MAX, FLOAT8_MAX))
    return values
