"""A chunk: a stretch of media on a rational timebase."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy.typing as npt


class Unit(StrEnum):
    """What a chunk's position counts."""

    SAMPLE = "sample"
    FRAME = "frame"
    TOKEN = "token"


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """`units` units of media from `first_unit` on, counted from the start of the flow; one unit lasts 1/`rate` s.

    `array` is memory of the receiver's own. `marks` are the maker's notes (a segment's index and text).
    """

    array: npt.NDArray[Any]
    first_unit: int
    units: int
    unit: Unit
    rate: int
    final: bool = False
    marks: dict[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> Fraction:
        """Seconds from the start of the flow, exact."""
        return Fraction(self.first_unit, self.rate)
