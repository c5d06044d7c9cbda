"""How a diffusers or transformers `config.json` is read: every setting is known, or refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value


def read_settings(
    config: Mapping[str, Any],
    *,
    model: str,
    ours: frozenset[str],
    fixed: Mapping[str, Any],
    without_effect: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The settings among `ours` that are given, lists as tuples.

    `fixed` are settings of which one value is built here; names that begin with "_" describe the file. Raises
    UNSUPPORTED_FIELD for a setting not known here, INVALID_VALUE for a value not built here.
    """
    unknown = {name for name in config if not name.startswith("_")} - ours - fixed.keys() - without_effect
    if unknown:
        message = f"{model} configuration: unknown {', '.join(sorted(unknown)[:5])}"
        raise StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, message, param=min(unknown))
    for name, only in fixed.items():
        given = config.get(name, only)
        if (tuple(given) if isinstance(given, list) else given) != only:
            raise invalid_value(name, given, repr(only))
    return {name: _frozen(config[name]) for name in sorted(ours & config.keys())}


def at_least_one(config: object, names: tuple[str, ...]) -> None:
    """Raises INVALID_VALUE for a field that is not a whole number of at least 1."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or value < 1:
            raise invalid_value(name, value, "a whole number of at least 1")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
