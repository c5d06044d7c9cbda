"""Ranks that divide a sequence fail together or not at all: they meet in the middle of every pass.

One that fails where the others go on leaves them in an exchange that cannot be interrupted, and that it cannot come
back to. So it ends, and the stage with it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.parallel.seat import Seat

FAILED_TOGETHER_S = 10.0
"""The others have this time to come to where one has failed: those that fail with it do so in the same pass."""


class Together:
    """`ranks` are those of one sequence. From the first failure of a step to its end, this process lives on borrowed
    time."""

    def __init__(self, seat: Seat, ranks: Ranks, device: torch.device) -> None:
        self._seat = seat
        self._ranks = ranks
        self._device = device
        self._alarm: threading.Timer | None = None

    def guard(self, module: nn.Module) -> None:
        """What fails in a pass of it is known before anything else is done about it: that may wait for others."""
        forward = module.forward

        @functools.wraps(forward)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return forward(*args, **kwargs)
            except Exception:
                self._set_alarm()
                raise

        module.forward = guarded

    def settle(self, error: Exception | None) -> None:
        """Called by all ranks at the end of a step, each with what has become of its own part: returns when they are
        in step, whatever has failed. Raises WORKER_DIED when one of them is lost."""
        if error is not None:
            self._set_alarm()
        failed = any(self._ranks.words("" if error is None else "failed"))
        if failed and self._device.type == "cuda":
            # There the host does not wait for exchanges: those that some rank has not come to never end.
            self._set_alarm()
            torch.cuda.synchronize(self._device)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _set_alarm(self) -> None:
        if self._alarm is None:
            reason = f"rank {self._seat.rank} has failed in the middle of a step, where the others have not"
            lose: Callable[[], object] = functools.partial(self._seat.lose, reason)
            self._alarm = threading.Timer(FAILED_TOGETHER_S, lose)
            self._alarm.daemon = True
            self._alarm.start()
