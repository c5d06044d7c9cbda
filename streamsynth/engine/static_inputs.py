"""What a captured step is told: tensors at fixed addresses, filled on the host and sent in one transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16

_NUMPY = {torch.int64: np.int64, torch.int32: np.int32, torch.float32: np.float32}


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a step; `padding` is what it holds at first, and where a step has fewer rows than its graph."""

    shape: Sequence[int]
    dtype: torch.dtype = torch.int64
    padding: int | float = 0

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


class StaticInputs:
    """Device tensors by field name in `device`, views of one block of memory.

    `begin` gives host arrays to fill, `send` queues their transfer on the current stream. There are two host blocks, so
    that one can be filled while the other's transfer has yet to run; `begin` waits if neither is free. The arrays hold
    what they did the last time but one.
    """

    def __init__(self, fields: Mapping[str, Field], device: torch.device) -> None:
        self._fields = fields
        places, size = _places(fields)
        cuda = device.type == "cuda"
        self._block = torch.zeros(size, dtype=torch.uint8, device=device)
        self.device = {
            name: self._block[start : start + field.nbytes].view(field.dtype).view(*field.shape)
            for (name, field), start in zip(fields.items(), places, strict=True)
        }
        self._hosts = [torch.zeros(size, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
        self._arrays = [
            {
                name: host.numpy()[start : start + field.nbytes].view(_NUMPY[field.dtype]).reshape(field.shape)
                for (name, field), start in zip(fields.items(), places, strict=True)
            }
            for host in self._hosts
        ]
        for arrays in self._arrays:
            for name, field in fields.items():
                arrays[name].fill(field.padding)
        self._sent = [torch.cuda.Event() for _ in self._hosts] if cuda else []
        self.block = 0

    def begin(self) -> dict[str, npt.NDArray[Any]]:
        self.block = 1 - self.block
        if self._sent:
            self._sent[self.block].synchronize()
        return self._arrays[self.block]

    def pad(self, name: str, start: int, end: int) -> None:
        """Put the padding back into rows `start` to `end` of the field."""
        self._arrays[self.block][name][start:end] = self._fields[name].padding

    def send(self) -> None:
        self._block.copy_(self._hosts[self.block], non_blocking=True)
        if self._sent:
            self._sent[self.block].record()


def _places(fields: Mapping[str, Field]) -> tuple[list[int], int]:
    """Where each field begins in the block, and the block's size."""
    places, end = [], 0
    for field in fields.values():
        places.append(end)
        end += -(-field.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, end


def columns(device: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in device.items() if name.startswith(prefix)}
