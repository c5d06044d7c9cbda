"""From a stage's declaration to its engine: what is missing on this machine is said in words of the deployment."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.extras import missing_extra


def open_engine(engine: str, options: Mapping[str, Any], **seat: Any) -> Any:
    """Import `engine` ("module:callable") and call it. Raises what that raises, START_FAILED where an extra is not
    installed or a file cannot be read, and INVALID_VALUE for a `device` that is not here."""
    module, _, name = engine.partition(":")
    try:
        load = getattr(importlib.import_module(module), name)
        if "device" in options:
            check_device(options["device"])
        return load(**options, **seat)
    except ImportError as error:
        if (missing := missing_extra(error, "this model")) is not None:
            raise missing from None
        raise
    except OSError as error:
        if error.filename is None:
            raise
        message = f"{os.fsdecode(error.filename)}: {error.strerror}"
        raise StreamSynthError(ErrorCode.START_FAILED, message) from error


def check_device(name: object, param: str = "device") -> None:
    """Raises INVALID_VALUE for what is no device of this machine. Begins nothing on it."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    allowed = "cpu: torch finds no CUDA device here" if count == 0 else f"cpu, cuda, or cuda:N below {count}"
    kind, _, number = str(name).partition(":")
    fits = not number or (number.isdecimal() and int(number) < count)
    if kind == "cuda" and count and fits and name != "cuda:":
        return
    if name != "cpu":
        raise invalid_value(param, name, allowed)
