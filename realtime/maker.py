"""A task that makes one thing of a session by a flow, and leaves nothing of it behind, however it ends."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from time import monotonic
from typing import Generic, TypeVar

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import RequestFlow
from streamsynth.observe.metrics import Metrics

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=RequestFlow)


class Maker(ABC, Generic[F]):
    """Starts at once. `task` ends when nothing is left of what is made, in the worker either."""

    def __init__(self, name: str, metrics: Metrics) -> None:
        self._flow: F | None = None
        self._name = name
        self._metrics = metrics
        self._stopped_s = 0.0
        self.task = asyncio.create_task(self._run(), name=name)

    def stop(self) -> None:
        """Make nothing more, from now on; never blocks."""
        self._stopped_s = monotonic()
        if self._flow is not None:
            self._flow.cancel()
        self.task.cancel()

    async def _run(self) -> None:
        try:
            await self._make()
        except StreamSynthError as error:
            self._failed(error)
        except asyncio.CancelledError:
            await self._idle()
            raise
        except Exception:
            logger.exception("%s failed, %s", self._name, self._flow.id if self._flow else "without a flow")
            self._failed(StreamSynthError(ErrorCode.INTERNAL_ERROR, "the server failed; its log says why"))
        finally:
            if self._flow is not None:
                self._flow.cancel()

    async def _idle(self) -> None:
        """Stay until the worker has let go, and say how long that took."""
        if self._flow is not None:
            await self._flow.idle()
            self._metrics.cancel_idle(monotonic() - self._stopped_s)

    @abstractmethod
    async def _make(self) -> None:
        """Open `_flow` and bring everything of it to the session; what it raises ends what is made."""

    @abstractmethod
    def _failed(self, error: StreamSynthError) -> None:
        """Tell the session; never blocks."""
