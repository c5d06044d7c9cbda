"""What a bench leaves: a table on standard output, and a JSON file and a plot in a folder."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from streamsynth.console import print_table

Value: TypeAlias = float | int | str | None
Row: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: lines by name over `x`, each a list of y values (None: no point)."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]
    log: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """`name` names the files; the columns of the table are the keys of the first row."""

    name: str
    rows: Sequence[Row]
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def show(self) -> None:
        columns = list(self.rows[0])
        print_table(columns, [[[_shown(row.get(column)) for column in columns] for row in self.rows]])

    def write(self, folder: Path) -> list[Path]:
        """The JSON file, and the plot if there are panels; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(self.content(), indent=2, allow_nan=False) + "\n")
        if not self.panels:
            return [path]
        plot(self.panels, folder / f"{self.name}.png")
        return [path, folder / f"{self.name}.png"]

    def content(self) -> dict[str, Any]:
        return {
            "bench": self.name,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "settings": dict(self.settings),
            "rows": [{name: _plain(value) for name, value in row.items()} for row in self.rows],
            "notes": list(self.notes),
        }


def machine() -> dict[str, Any]:
    """Enough to know which figures can be compared."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def plot(panels: Sequence[Panel], path: Path) -> None:
    """Raises ModuleNotFoundError without the `bench` extra."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(6 * columns, 4.2 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, panel in zip(axes.flat, panels, strict=False):
        for name, values in panel.lines.items():
            points = [(x, y) for x, y in zip(panel.x, values, strict=True) if y is not None and math.isfinite(y)]
            axis.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=name)
        if panel.log:
            axis.set_xscale("log")
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _plain(value: Value) -> Value:
    """JSON has no infinity and no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: Value) -> str:
    match value:
        case None:
            return "-"
        case float() if not math.isfinite(value):
            return "-" if math.isnan(value) else "inf"
        case float() if value and abs(value) < 0.01:
            return f"{value:.2g}"
        case float():
            return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
        case _:
            return str(value)
