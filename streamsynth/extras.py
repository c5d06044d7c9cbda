"""What is not installed with streamsynth alone, by the extra that brings it."""

from __future__ import annotations

from collections.abc import Mapping

from streamsynth.errors import ErrorCode, StreamSynthError

EXTRAS: Mapping[str, frozenset[str]] = {
    "diffusers": frozenset({"accelerate", "diffusers", "ftfy", "PIL", "transformers"}),
    "bench": frozenset({"matplotlib"}),
    "speakers": frozenset({"sounddevice"}),
}
"""The modules that each one brings."""


def missing_extra(error: ImportError, what: str) -> StreamSynthError | None:
    """`what` needs an extra; None for a module that no extra has."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            message = f"{what} needs {module}, which is not installed: pip install 'streamsynth[{extra}]'"
            return StreamSynthError(ErrorCode.START_FAILED, message)
    return None
