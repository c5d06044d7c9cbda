"""The two kinds of step that are captured, each at one size: positions of prompts, and frames for gangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from streamsynth.engine.attention import PageMemory
from streamsynth.engine.kv.pages import PageId
from streamsynth.engine.planner import Row
from streamsynth.engine.runner import Drawing, FrameGang, FrameModel
from streamsynth.engine.sampler import SamplingBatch
from streamsynth.engine.static_inputs import Field, StaticInputs, columns
from streamsynth.engine.table_attention import TableAttentionType

_NOWHERE = -1

_SAMPLING = {
    "temperature": (torch.float32, 0.0),
    "top_k": (torch.int64, 0),
    "top_p": (torch.float32, 1.0),
    "min_p": (torch.float32, 0.0),
    "seed": (torch.int64, 0),
}
_DRAWING = [f"{part}_{name}" for part in ("first", "rest") for name in _SAMPLING]


@dataclass(frozen=True, slots=True)
class Captured:
    """What every step works on. `drawn` (places, codebooks) int64 keeps frames for the steps that follow; its last
    place takes what padding draws. `capture` makes, from the work of a step, what repeats it."""

    model: FrameModel
    memory: PageMemory
    attention: TableAttentionType
    drawn: Tensor
    table_pages: int
    capture: Callable[[Callable[[], None]], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions of a row to be computed without drawing."""

    gang: FrameGang
    row: Row
    start: int
    count: int


class PromptStep:
    """Computes up to `tokens` positions of up to `rows` rows."""

    def __init__(self, captured: Captured, *, tokens: int, rows: int) -> None:
        self.size = tokens
        self._captured = captured
        self._inputs = StaticInputs(
            {
                "inputs": Field((tokens, captured.model.width)),
                "positions": Field((tokens,)),
                "owners": Field((tokens,), padding=rows),
                "tables": Field((rows + 1, captured.table_pages), torch.int32),
            },
            captured.drawn.device,
        )
        self._inputs.begin()
        self._inputs.send()
        self._replay = captured.capture(self._run)

    def _run(self) -> None:
        captured, given = self._captured, self._inputs.device
        attention = captured.attention(
            captured.memory, given["positions"], given["owners"], given["tables"], alone=False
        )
        captured.model.trunk(captured.model.embed(given["inputs"]), attention)

    def launch(self, stretches: Sequence[Stretch]) -> None:
        host = self._inputs.begin()
        end = 0
        for number, stretch in enumerate(stretches):
            start, end = end, end + stretch.count
            host["inputs"][start:end] = stretch.gang.inputs(stretch.row, stretch.start, stretch.count)
            host["positions"][start:end] = range(stretch.start, stretch.start + stretch.count)
            host["owners"][start:end] = number
            host["tables"][number, : len(stretch.row.pages)] = stretch.row.pages
        # Only those of padding tokens point to the last table, which stays empty.
        for name in ("inputs", "positions", "owners"):
            self._inputs.pad(name, end, self.size)
        self._inputs.send()
        self._replay()


class FrameStep:
    """Draws the next frame of up to `units` gangs of `rows` rows each, from their last positions."""

    def __init__(self, captured: Captured, *, units: int, rows: int) -> None:
        self.size = units
        self._rows = rows
        self._captured = captured
        self._inputs = StaticInputs(
            {
                "inputs": Field((units, rows, captured.model.width)),
                "source": Field((units,), padding=_NOWHERE),
                "target": Field((units,), padding=len(captured.drawn) - 1),
                "noise": Field((units,)),
                "positions": Field((units * rows,)),
                "scale": Field((units,), torch.float32, 1.0),
                "tables": Field((units * rows, captured.table_pages), torch.int32),
                **{
                    f"{part}_{name}": Field((units,), dtype, padding)
                    for part in ("first", "rest")
                    for name, (dtype, padding) in _SAMPLING.items()
                },
            },
            captured.drawn.device,
        )
        device = self._inputs.device
        self._first, self._rest = (
            SamplingBatch(**columns(device, f"{part}_"), greedy=False, candidates=0, only_top_k=False, controls=None)
            for part in ("first", "rest")
        )
        self._owners = torch.arange(units * rows, device=captured.drawn.device)
        self._cache = captured.model.depth_cache(units * rows)
        self._tenants: list[list[_Tenant | None]] = [[None] * units for _ in range(2)]
        self._inputs.begin()
        self._inputs.send()
        self._replay = captured.capture(self._run)

    def _run(self) -> None:
        captured, given = self._captured, self._inputs.device
        model, source = captured.model, given["source"]
        # A frame of the step before has not been seen by the host: its place is known, and it is fed from there.
        fed = model.feedback(captured.drawn[source.clamp_min(0)])[:, None]
        last = torch.where((source == _NOWHERE)[:, None, None], given["inputs"], fed).flatten(0, 1)
        attention = captured.attention(captured.memory, given["positions"], self._owners, given["tables"], alone=True)
        hidden = model.trunk(model.embed(last), attention)
        frames = model.frame(hidden, self._first, self._rest, given["noise"], given["scale"], self._cache)
        captured.drawn.index_copy_(0, given["target"], frames)

    def launch(self, gangs: Sequence[FrameGang], sources: Sequence[int | None], targets: Sequence[int]) -> None:
        """`sources` are the places of frames that follow a gang's read positions, `targets` where the next ones go."""
        host, count = self._inputs.begin(), len(gangs)
        tenants = self._tenants[self._inputs.block]
        for unit, gang in enumerate(gangs):
            tenant = tenants[unit]
            if tenant is None or tenant.gang is not gang:
                tenant = tenants[unit] = _Tenant(gang, [None] * self._rows)
                _fill_drawing(host, unit, gang.drawing)
            self._fill_tables(host["tables"], unit, tenant)
            if sources[unit] is None:
                for number, row in enumerate(gang.rows):
                    host["inputs"][unit, number] = gang.inputs(row, row.length - 1, 1)[0]
        host["source"][:count] = [_NOWHERE if source is None else source for source in sources]
        host["target"][:count] = targets
        host["noise"][:count] = [gang.noise_position for gang in gangs]
        host["positions"][: count * self._rows] = [row.length - 1 for gang in gangs for row in gang.rows]
        self._vacate(tenants, count)
        self._inputs.send()
        self._replay()

    def _fill_tables(self, tables: npt.NDArray[Any], unit: int, tenant: _Tenant) -> None:
        """Pages are only ever appended; a gang that was preempted has other lists of them when it returns."""
        for number, row in enumerate(tenant.gang.rows):
            shown = tenant.shown[number]
            if shown is None or shown.pages is not row.pages:
                shown = tenant.shown[number] = _Shown(row.pages)
            if shown.count < len(row.pages):
                tables[unit * self._rows + number, shown.count : len(row.pages)] = row.pages[shown.count :]
                shown.count = len(row.pages)

    def _vacate(self, tenants: list[_Tenant | None], count: int) -> None:
        """Units from `count` on that had a gang draw nothing: into the last place, over the null page."""
        for unit in range(count, self.size):
            if tenants[unit] is None:
                continue
            tenants[unit] = None
            for name in ("inputs", "source", "target", "noise", "scale", *_DRAWING):
                self._inputs.pad(name, unit, unit + 1)
            for name in ("positions", "tables"):
                self._inputs.pad(name, unit * self._rows, (unit + 1) * self._rows)


@dataclass(slots=True)
class _Shown:
    """How much of a row's list of pages a host block holds."""

    pages: list[PageId]
    count: int = 0


@dataclass(slots=True)
class _Tenant:
    """The gang that a unit of a host block was last filled for, and what it holds of each row's pages."""

    gang: FrameGang
    shown: list[_Shown | None]


def _fill_drawing(host: dict[str, npt.NDArray[Any]], unit: int, drawing: Drawing) -> None:
    host["scale"][unit] = drawing.scale
    for part, params in (("first", drawing.first), ("rest", drawing.rest)):
        for name in _SAMPLING:
            host[f"{part}_{name}"][unit] = getattr(params, name)
