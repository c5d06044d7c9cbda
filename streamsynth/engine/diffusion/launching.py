"""How far a clip may run ahead of the device."""

from __future__ import annotations

from collections import deque

import torch

AHEAD = 1
"""Steps that may have been launched beside the one in flight: a cancelled clip costs no more than these."""


class LaunchAhead:
    """Steps on CUDA return before they are done: without this, a whole clip would be launched at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[torch.cuda.Event] = deque()

    def launched(self) -> None:
        """A step was launched on the device's current stream; waits until at most one other is under way."""
        if self._device.type != "cuda":
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._steps.append(event)
        if len(self._steps) > 1 + AHEAD:
            self._steps.popleft().synchronize()
