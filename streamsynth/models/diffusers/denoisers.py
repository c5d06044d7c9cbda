"""A pipeline's denoisers, entered by several lanes: one pass for those whose calls go together."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from streamsynth.models.diffusers.joining import Call, joined, parted
from streamsynth.models.diffusers.lane import Lane
from streamsynth.models.diffusers.placing import DENOISERS

logger = logging.getLogger(__name__)


class SharedDenoisers:
    """Puts itself before the `forward` of each denoiser: in a lane, that becomes a question to the step loop.

    `passes` counts those that were run, `joined` those that served several requests. `together` False keeps them apart.
    """

    def __init__(self, pipeline: Any) -> None:
        self.together = True
        self.passes = self.joined = 0
        self._lanes = threading.local()
        self._forwards: dict[torch.nn.Module, Callable[..., Any]] = {}
        for name in DENOISERS:
            module = getattr(pipeline, name, None)
            if module is not None and module not in self._forwards:
                self._forwards[module] = module.forward
                module.forward = self._asking(module)

    @contextmanager
    def within(self, lane: Lane[Any]) -> Iterator[None]:
        """On the lane's own thread."""
        self._lanes.current = lane
        try:
            yield
        finally:
            self._lanes.current = None

    @torch.no_grad()
    def respond(self, calls: Sequence[Call]) -> list[Any]:
        """The results of all the calls, an exception where one failed."""
        answers: list[Any] = [None] * len(calls)
        waiting = list(range(len(calls)))
        while waiting:
            group = self._group(calls, waiting)
            for place, answer in zip(group, self._run([calls[place] for place in group]), strict=True):
                answers[place] = answer
            waiting = [place for place in waiting if place not in group]
        return answers

    def _group(self, calls: Sequence[Call], waiting: Sequence[int]) -> list[int]:
        """The first of those that wait, and all that go together with it."""
        group = [waiting[0]]
        if self.together:
            for place in waiting[1:]:
                if joined([calls[each] for each in (*group, place)]) is not None:
                    group.append(place)
        return group

    def _run(self, calls: Sequence[Call]) -> list[Any]:
        call = joined(calls) if len(calls) > 1 else None
        if call is not None:
            try:
                result = parted(self._forward(call), [each.rows for each in calls])
            except Exception as error:  # noqa: BLE001 - repeated one by one, so that what fails does so alone
                logger.warning("a pass for %d requests failed: %s", len(calls), error)
            else:
                self.joined += 1
                return result
        return [self._alone(each) for each in calls]

    def _alone(self, call: Call) -> Any:
        try:
            return self._forward(call)
        except Exception as error:  # noqa: BLE001 - raised in the lane that asked
            return error

    def _forward(self, call: Call) -> Any:
        self.passes += 1
        return self._forwards[call.module](**call.given)

    def _asking(self, module: torch.nn.Module) -> Callable[..., Any]:
        forward = self._forwards[module]
        names = tuple(inspect.signature(forward).parameters)

        def ask(*args: Any, **kwargs: Any) -> Any:
            lane: Lane[Any] | None = getattr(self._lanes, "current", None)
            return (
                forward(*args, **kwargs)
                if lane is None
                else lane.ask(Call(module, {**dict(zip(names, args, strict=False)), **kwargs}))
            )

        return ask
