"""The mark of a field that nobody set: an explicit null is a value, an absent field is UNSET."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Unset(Enum):
    """The type of UNSET; a type checker narrows `value is UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
