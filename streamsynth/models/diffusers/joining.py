"""One pass of a denoiser for several requests: their calls become one that has the rows of all, and come apart again.

How a denoiser names its inputs is its own affair. What goes by rows is told by its length: tensors whose first
dimension is the number of rows, and lists of that length. All else must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """What a pipeline calls its denoiser with, by the names of the denoiser's parameters, in the order given."""

    module: torch.nn.Module
    given: dict[str, Any]

    @property
    def rows(self) -> int:
        """By the latents, which come first wherever they are named; 0 if they do not say."""
        first = next(iter(self.given.values()), None)
        if isinstance(first, Tensor):
            return int(first.shape[0]) if first.dim() else 0
        return len(first) if isinstance(first, list) else 0


class _Apart(Exception):
    """The calls do not go together."""


def joined(calls: Sequence[Call]) -> Call | None:
    """One call for all of them, or None if their shapes or settings do not agree."""
    first = calls[0]
    rows = [call.rows for call in calls]
    if not all(rows) or any(call.module is not first.module for call in calls):
        return None
    if any(call.given.keys() != first.given.keys() for call in calls):
        return None
    try:
        given = {name: _merged([call.given[name] for call in calls], rows, name) for name in first.given}
    except _Apart:
        return None
    return Call(first.module, given)


def parted(result: Any, rows: Sequence[int]) -> list[Any]:
    """What each call would have returned. Raises ValueError for what does not go by rows."""
    total = sum(rows)
    if isinstance(result, Tensor) and result.dim() and result.shape[0] == total:
        return list(result.split(list(rows)))
    if isinstance(result, list) and len(result) == total:
        starts = [sum(rows[:place]) for place in range(len(rows))]
        return [result[start : start + count] for start, count in zip(starts, rows, strict=True)]
    if isinstance(result, tuple):
        parts = [parted(each, rows) for each in result]
        return [tuple(part[place] for part in parts) for place in range(len(rows))]
    if isinstance(result, dict):
        named = {name: parted(each, rows) for name, each in result.items()}
        return [type(result)(**{name: part[place] for name, part in named.items()}) for place in range(len(rows))]
    raise ValueError(f"a {type(result).__name__} does not go by {total} rows")


def _merged(values: Sequence[Any], rows: Sequence[int], name: str = "") -> Any:
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise _Apart
    if isinstance(first, Tensor):
        return _merged_tensors(values, rows, name)
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            raise _Apart
        return {key: _merged([value[key] for value in values], rows) for key in first}
    if isinstance(first, tuple):
        if any(len(value) != len(first) for value in values):
            raise _Apart
        return tuple(_merged([value[place] for value in values], rows) for place in range(len(first)))
    if isinstance(first, list) and [len(value) for value in values] == list(rows):
        return [item for value in values for item in value]
    if any(value != first for value in values):
        raise _Apart
    return first


def _merged_tensors(values: Sequence[Tensor], rows: Sequence[int], name: str) -> Tensor:
    first = values[0]
    if any((value.dtype, value.device, value.dim()) != (first.dtype, first.device, first.dim()) for value in values):
        raise _Apart
    if first.dim() == 0 and name == "timestep":
        return torch.cat([value.expand(count) for value, count in zip(values, rows, strict=True)])
    if first.dim() and [value.shape[0] for value in values] == list(rows):
        if any(value.shape[1:] != first.shape[1:] for value in values):
            raise _Apart
        return torch.cat(list(values))
    if not all(value is first or torch.equal(value, first) for value in values):
        raise _Apart
    return first
