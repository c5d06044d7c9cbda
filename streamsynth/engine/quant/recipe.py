"""How linear layers are quantised, and which are left as they are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Literal

from streamsynth.errors import invalid_value

METHODS = ("fp8_per_tensor",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """`fp8_per_tensor`: weights and activations in float8 e4m3 with one scale each, the activations' as they come.

    `ignored` are patterns of layers' paths in the model (`*` matches dots too): those layers stay as they are.
    """

    method: Literal["fp8_per_tensor"] = "fp8_per_tensor"
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise invalid_value("method", self.method, f"one of {', '.join(METHODS)}")

    def ignores(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.ignored)

    def canonical(self) -> str:
        """Equal for recipes that make the same layers: part of a cached model's key."""
        return json.dumps({**asdict(self), "ignored": sorted(set(self.ignored))}, sort_keys=True)
