"""Moving a conditioning (a prompt's embedding, say) from what is in force to a target, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Generic, TypeVar

T = TypeVar("T")


class Blender(Generic[T]):
    """`mix(source, target, weight)` is only called for weights strictly between 0 and 1; at 1 the value is the target
    itself. A new target's source is the value in force, so memory does not grow with the number of targets.
    """

    def __init__(self, value: T, mix: Callable[[T, T, Fraction], T]) -> None:
        self.value = value
        self._mix = mix
        self._source = self._target = value

    def begin(self, target: T) -> None:
        self._source, self._target = self.value, target

    def progress(self, weight: Fraction) -> None:
        """Set `value` to what lies `weight` of the way from source to target."""
        if weight >= 1:
            self.value = self._source = self._target
        elif weight > 0:
            self.value = self._mix(self._source, self._target, weight)
