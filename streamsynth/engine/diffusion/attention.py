"""Which attention back-end serves which role: one selector. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value

BACKENDS = ("sdpa", "cudnn", "flex", "flash", "flash3", "sage")
CATEGORIES = ("self", "cross", "joint")
_KEYS = ("default", "per_role")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionConfig:
    """`per_role` has exact roles, the names that a model gives to its attentions, and categories beside them."""

    default: str | None = None
    per_role: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {"default": self.default, **{f"per_role.{role}": name for role, name in self.per_role.items()}}
        for where, name in named.items():
            if name is not None and name not in BACKENDS:
                raise invalid_value(f"attention.{where}", name, "one of " + ", ".join(BACKENDS))

    def select(self, role: str, category: str) -> str | None:
        """By the exact role, else its category, else the default; None leaves it to the platform."""
        return self.per_role.get(role) or self.per_role.get(category) or self.default

    def check_roles(self, roles: Iterable[str]) -> None:
        """Raise INVALID_VALUE for a role that the model does not have."""
        known = sorted({*roles, *CATEGORIES})
        for role in self.per_role:
            if role not in known:
                raise invalid_value("attention.per_role", role, "one of " + ", ".join(known))


def parse_attention(given: Mapping[str, Any]) -> AttentionConfig:
    """Of the option `attention`; empty leaves everything to the platform."""
    for name in given:
        if name not in _KEYS:
            message = f"attention has no setting {name!r}; its settings: {', '.join(_KEYS)}"
            raise StreamSynthError(ErrorCode.UNKNOWN_FIELD, message, param=f"attention.{name}")
    per_role = given.get("per_role") or {}
    if not isinstance(per_role, Mapping):
        raise invalid_value("attention.per_role", per_role, "a map from roles to back-ends")
    return AttentionConfig(default=given.get("default"), per_role=per_role)
