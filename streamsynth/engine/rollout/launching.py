"""How far the step loop may run ahead of the device."""

from __future__ import annotations

from collections import deque

import torch

AHEAD = 1
"""Passes that may have been launched beside the one in flight: a cancelled video costs no more than these."""


class LaunchAhead:
    """Passes on CUDA return before they are done: without this, a whole chunk would be launched at once."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._passes: deque[torch.cuda.Event] = deque()

    def launched(self) -> None:
        """A pass was launched on the current stream; waits until at most one other is under way."""
        if not self._on_cuda:
            return
        event = torch.cuda.Event()
        event.record()
        self._passes.append(event)
        if len(self._passes) > 1 + AHEAD:
            self._passes.popleft().synchronize()
