"""The one place where the process environment is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def api_keys() -> tuple[str, ...]:
    """STREAMSYNTH_API_KEYS: the keys that a server accepts, separated by commas."""
    return tuple(key for key in os.environ.get("STREAMSYNTH_API_KEYS", "").split(",") if key)


def api_key() -> str | None:
    """STREAMSYNTH_API_KEY: the key that a client sends."""
    return os.environ.get("STREAMSYNTH_API_KEY") or None


def state_folder() -> Path:
    """Where programs keep what should outlive them: XDG_STATE_HOME, or its usual place."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return Path(given) if given.startswith("/") else Path("~/.local/state").expanduser()


def cache_folder() -> Path:
    """STREAMSYNTH_CACHE, or a folder of ours where XDG_CACHE_HOME says, which is ~/.cache without it."""
    named = os.environ.get("STREAMSYNTH_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamsynth"


def visible_devices(count: int) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES is to be for each of `count` ranks: one device each, of those that this process sees;
    none for ranks beyond them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = [str(number) for number in range(count)] if given is None else [name for name in given.split(",") if name]
    return tuple((seen + count * [""])[:count])


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy for a child process, with `extra` on top."""
    return {**os.environ, **(extra or {})}
