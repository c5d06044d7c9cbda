"""The fast loop: every step is one of a few captured sizes, and is launched before the frames of the last are read.

`Runner` is its oracle: both draw the same frames. A gang's last position is always computed together with its frame,
so that the end of a prompt and a frame that is fed back are the same case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from streamsynth.engine.attention import PageMemory
from streamsynth.engine.captured_steps import Captured, FrameStep, PromptStep, Stretch
from streamsynth.engine.graphs import repeating
from streamsynth.engine.planner import Plan, Row
from streamsynth.engine.runner import Drawn, FrameGang, FrameModel, Runner
from streamsynth.engine.table_attention import TableAttention, TableAttentionType

Step = TypeVar("Step", PromptStep, FrameStep)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSizes:
    """What is captured; a step is rounded up to the next size, and a larger one takes several launches.

    `gang_rows`: the numbers of rows that a gang can have. `units`: gangs that draw together. `tokens`: positions of
    prompts. `max_rows` bounds the rows of a plan, `max_positions` the length of a row.
    """

    gang_rows: Sequence[int]
    units: Sequence[int]
    tokens: Sequence[int]
    max_rows: int
    max_positions: int


class CapturedRunner:
    """Runs plans by replaying captured steps, at most one ahead of what has been read.

    On CUDA the steps are captured into graphs when this is built, and nothing is compiled or captured afterwards
    (`captures` stays as it is); elsewhere the same steps run one operation after the other. Gangs that ask for more
    than sampling (masks, penalties, log-probabilities) are computed by `plain`, within the same steps.
    """

    def __init__(
        self,
        model: FrameModel,
        memory: PageMemory,
        sizes: StepSizes,
        *,
        plain: Runner,
        attention: TableAttentionType = TableAttention,
    ) -> None:
        self.captures = 0
        self._model = model
        self._plain = plain
        self._most = sizes.max_rows
        device = memory.keys.device
        self._repeat = repeating(device)
        drawn = torch.zeros((2 * self._most + 1, model.codebooks), dtype=torch.int64, device=device)
        self._captured = Captured(
            model, memory, attention, drawn, -(-sizes.max_positions // memory.page_size), self._capture
        )
        with torch.inference_mode():
            # The largest first: the memory it takes then serves the others too.
            self._frames = {
                rows: [FrameStep(self._captured, units=units, rows=rows) for units in _falling(sizes.units)]
                for rows in sizes.gang_rows
            }
            self._prompts = [
                PromptStep(self._captured, tokens=tokens, rows=sizes.max_rows) for tokens in _falling(sizes.tokens)
            ]
        shape = (self._most, model.codebooks)
        self._hosts = [torch.zeros(shape, dtype=torch.int64, pin_memory=device.type == "cuda") for _ in range(2)]
        self._half = 0
        self._flight: _Flight | None = None

    @property
    def busy(self) -> bool:
        return self._flight is not None

    @torch.inference_mode()
    def step(self, plan: Plan, gangs: Mapping[Row, FrameGang]) -> list[Drawn]:
        """As `StepRunner.step`: launches the plan, then waits for the frames of the one before."""
        before = self._flight
        plan, controlled = _apart(plan, gangs)
        ready = [gangs[gang.rows[0]] for gang in plan.ready]
        self._compute_prompts(plan, gangs, set(ready))
        self._flight = self._draw(ready, before) if ready else None
        read = before.read(self._model) if before is not None else []
        return read + self._plain.step(controlled, gangs)

    def _capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        return self._repeat(run)

    def _compute_prompts(self, plan: Plan, gangs: Mapping[Row, FrameGang], ready: set[FrameGang]) -> None:
        """All positions of the plan but those that frames are drawn from."""
        stretches = []
        for span in plan.spans:
            gang = gangs[span.row]
            count = span.count - (gang in ready)
            if count:
                stretches.append(Stretch(gang, span.row, span.start, count))
        for part in _parts(stretches, self._prompts[0].size):
            _fitting(self._prompts, sum(stretch.count for stretch in part)).launch(part)

    def _draw(self, ready: Sequence[FrameGang], before: _Flight | None) -> _Flight:
        self._half = 1 - self._half
        first = self._half * self._most
        flight = _Flight(ready, first, self._hosts[self._half])
        places = {gang: first + index for index, gang in enumerate(ready)}
        known = {} if before is None else {gang: before.first + index for index, gang in enumerate(before.gangs)}
        for rows in {len(gang.rows) for gang in ready}:
            if rows not in self._frames:
                raise ValueError(f"gangs of {rows} rows have no captured step; those of {[*self._frames]} rows do")
            alike = [gang for gang in ready if len(gang.rows) == rows]
            steps = self._frames[rows]
            for start in range(0, len(alike), steps[0].size):
                part = alike[start : start + steps[0].size]
                _fitting(steps, len(part)).launch(
                    part, [known.get(gang) for gang in part], [places[gang] for gang in part]
                )
        for gang in ready:
            gang.launch()
        flight.fetch(self._captured.drawn)
        return flight


class _Flight:
    """Frames that were launched and not read: those of `gangs`, from place `first` on."""

    def __init__(self, gangs: Sequence[FrameGang], first: int, host: Tensor) -> None:
        self.gangs = gangs
        self.first = first
        self._host = host[: len(gangs)]
        self._done = torch.cuda.Event() if host.is_pinned() else None

    def fetch(self, drawn: Tensor) -> None:
        """Queue the transfer to the host."""
        self._host.copy_(drawn[self.first : self.first + len(self.gangs)], non_blocking=True)
        if self._done is not None:
            self._done.record()

    def read(self, model: FrameModel) -> list[Drawn]:
        """Wait for the frames and feed them to their gangs."""
        if self._done is not None:
            self._done.synchronize()
        frames = self._host.clone()
        for gang, position in zip(self.gangs, model.feedback(frames), strict=True):
            gang.feed(position)
        return [Drawn(gang, frame) for gang, frame in zip(self.gangs, frames, strict=True)]


def _apart(plan: Plan, gangs: Mapping[Row, FrameGang]) -> tuple[Plan, Plan]:
    """The plan without the gangs that ask for more than sampling, and theirs."""
    if not any(gangs[span.row].drawing.controlled for span in plan.spans):
        return plan, Plan([], [])
    parts = []
    for controlled in (False, True):
        spans = [span for span in plan.spans if gangs[span.row].drawing.controlled is controlled]
        ready = [gang for gang in plan.ready if gangs[gang.rows[0]].drawing.controlled is controlled]
        parts.append(Plan(spans, ready))
    return parts[0], parts[1]


def _parts(stretches: Sequence[Stretch], most: int) -> Iterator[list[Stretch]]:
    """The stretches in their order, cut into parts of at most `most` positions."""
    part: list[Stretch] = []
    room = most
    for stretch in stretches:
        start, left = stretch.start, stretch.count
        while left:
            count = min(left, room)
            part.append(Stretch(stretch.gang, stretch.row, start, count))
            start, left, room = start + count, left - count, room - count
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part


def _falling(sizes: Sequence[int]) -> list[int]:
    return sorted(sizes, reverse=True)


def _fitting(steps: Sequence[Step], size: int) -> Step:
    """The smallest that holds so many; the largest come first."""
    return next(step for step in reversed(steps) if step.size >= size)
