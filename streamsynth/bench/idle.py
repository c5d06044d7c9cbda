"""How long a device has nothing to do between two requests: from the last kernel of one to the first of the next."""

from __future__ import annotations

import math
import time
from statistics import median
from typing import Any

import torch
from torch import nn


class Mark:
    """A moment of the device's own: on a GPU when all that was launched before is done, on a CPU now."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self._at = time.perf_counter()
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))

    def ms_until(self, later: Mark) -> float:
        """Blocking, on a GPU until it is there."""
        if self._event is None or later._event is None:
            return 1e3 * (later._at - self._at)
        later._event.synchronize()
        took_ms: float = self._event.elapsed_time(later._event)
        return took_ms


class Gaps:
    """Marks the first pass of each request through any of a pipeline's modules, and its end."""

    def __init__(self, pipeline: Any, device: torch.device) -> None:
        self._device = device
        self._awaited = False
        self._begun: list[Mark] = []
        self._ended: list[Mark] = []
        modules = [part for part in pipeline.components.values() if isinstance(part, nn.Module)]
        # Some of them are called by other names than forward: their children are not.
        self._hooks = [each.register_forward_pre_hook(self._pass) for part in modules for each in part.modules()]

    def begin(self) -> None:
        """A request begins: its first pass is the next."""
        self._awaited = True

    def end(self) -> None:
        """All of its kernels are launched."""
        self._ended.append(Mark(self._device))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _pass(self, _module: nn.Module, _inputs: Any) -> None:
        if self._awaited:
            self._awaited = False
            self._begun.append(Mark(self._device))

    @property
    def idle_share(self) -> float:
        """The median gap of the median request; not a number where requests overlap, or there was one alone."""
        gaps = [end.ms_until(begin) for end, begin in zip(self._ended, self._begun[1:], strict=False)]
        took = [begin.ms_until(end) for begin, end in zip(self._begun, self._ended, strict=False)]
        if not gaps or len(self._begun) != len(self._ended) or min(gaps) < 0:
            return math.nan
        return median(gaps) / median(took)
