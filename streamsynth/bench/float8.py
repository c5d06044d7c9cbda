"""Float8 linear layers beside bfloat16 ones: how much they multiply in a second, and how far the results are apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from streamsynth.bench.offload_sides import synchronize
from streamsynth.bench.report import Report, Row
from streamsynth.engine.quant.linear import Float8Linear

# Dense bfloat16 and float8 operations a second, as the maker says.
_PEAKS = {"NVIDIA H200": (989e12, 1979e12), "NVIDIA H100 80GB HBM3": (989e12, 1979e12)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Float8Load:
    """`shapes` are (in, out) of layers, `rows` of their input. The defaults are Wan 2.1 14B's layers, and its rows for
    81 frames of 832x480."""

    device: str = "cuda"
    shapes: Sequence[tuple[int, int]] = ((5120, 5120), (5120, 13824), (13824, 5120))
    rows: Sequence[int] = (512, 32760)
    repeats: int = 20
    rounds: int = 5


@torch.inference_mode()
def bench_float8(load: Float8Load) -> Report:
    """Blocking."""
    device = torch.device(load.device)
    return Report("float8", [row for shape in load.shapes for row in _rows(shape, load, device)])


def _rows(shape: tuple[int, int], load: Float8Load, device: torch.device) -> Iterator[Row]:
    torch.manual_seed(0)
    plain = nn.Linear(*shape, device=device, dtype=torch.bfloat16)
    layer = Float8Linear.of(plain, "layer")
    peaks = _PEAKS.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    for rows in load.rows:
        x = torch.randn(rows, shape[0], device=device, dtype=torch.bfloat16)
        operations = 2 * rows * shape[0] * shape[1]
        # In turn, so that a clock that changes changes for both.
        both = [(_seconds(plain, x, load, device), _seconds(layer, x, load, device)) for _ in range(load.rounds)]
        wide, narrow = (median(side) for side in zip(*both, strict=True))
        exact, made = plain(x).float(), layer(x).float()
        yield {
            "in": shape[0],
            "out": shape[1],
            "rows": rows,
            "bfloat16 TFLOP/s": operations / wide / 1e12,
            "float8 TFLOP/s": operations / narrow / 1e12,
            "over bfloat16": wide / narrow,
            "bfloat16 of peak": None if peaks is None else operations / wide / peaks[0],
            "float8 of peak": None if peaks is None else operations / narrow / peaks[1],
            "error": float((made - exact).norm() / exact.norm()),
        }


def _seconds(run: Callable[[Tensor], Tensor], x: Tensor, load: Float8Load, device: torch.device) -> float:
    run(x)
    synchronize(device)
    began = time.perf_counter()
    for _ in range(load.repeats):
        run(x)
    synchronize(device)
    return (time.perf_counter() - began) / load.repeats
