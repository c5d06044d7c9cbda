"""Where a pipeline's call can be stopped: behind each step of its scheduler, which every pipeline has."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any


def with_steps(pipeline: Any, on_step: Callable[[int, int], None]) -> Any:
    """A pipeline of the same models with a scheduler of its own, so that several calls can be under way at once.

    `on_step(done, of)` is called after each of its steps, and may raise to end the call.
    """
    own = copy.copy(pipeline)
    own.__dict__.pop("_num_timesteps", None)
    scheduler = copy.deepcopy(pipeline.scheduler)
    scheduler.__class__ = _counting(type(scheduler), scheduler, own, on_step)
    # Not by the pipeline's own way, which would write into the configuration that the two share.
    object.__setattr__(own, "scheduler", scheduler)
    return own


def _counting(kind: type, owner: Any, pipeline: Any, on_step: Callable[[int, int], None]) -> type:
    """A subclass, because what a scheduler is gets copied by some pipelines: a copy must step itself, uncounted."""
    done = 0

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        result = kind.step(self, *args, **kwargs)  # type: ignore[attr-defined]  # every scheduler has it
        if self is owner:
            done += 1
            # Fewer than the scheduler has, where a pipeline begins in the middle.
            of = getattr(pipeline, "_num_timesteps", None) or len(self.timesteps)
            on_step(done, max(done, of))
        return result

    # Pipelines look at the names of its parameters.
    step.__signature__ = _signature(kind)  # type: ignore[attr-defined]  # what inspect reads first
    return type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})


def _signature(kind: type) -> Any:
    return inspect.signature(kind.step)  # type: ignore[attr-defined]  # every scheduler has it
