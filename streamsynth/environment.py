"""The one place where the process environment is read."""

from __future__ import annotations

import itertools
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


def visible_devices() -> tuple[str, ...]:
    """The CUDA devices of this process as CUDA_VISIBLE_DEVICES names them; without that, as many as Linux has."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return tuple(str(number) for number in range(sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))))
    names = [name.strip() for name in given.split(",")]
    # As CUDA reads it: what comes behind a name that is none does not count.
    return tuple(itertools.takewhile(lambda name: name not in ("", "-1"), names))


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy for a child process, with `extra` on top."""
    return {**os.environ, **(extra or {})}
