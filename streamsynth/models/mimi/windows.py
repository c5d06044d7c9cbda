"""The left contexts of causal convolutions between steps, and the buffers in which a step gathers its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvShape:
    """How a convolution reads its input: `window` inputs at every `stride`, `per_frame` inputs a frame."""

    channels: int
    window: int
    stride: int
    per_frame: int

    @property
    def context(self) -> int:
        """Inputs before the step's first that its first window needs."""
        return self.window - self.stride


class Contexts:
    """One row a stream with every convolution's left context, flat and as (rows, inputs, channels) each."""

    def __init__(self, shapes: Sequence[ConvShape], rows: int, dtype: torch.dtype, device: torch.device) -> None:
        widths = [shape.context * shape.channels for shape in shapes]
        self.flat = torch.zeros(rows, sum(widths), dtype=dtype, device=device)
        pieces = self.flat.split(widths, dim=1)
        self.each = [
            piece.view(rows, shape.context, shape.channels) for piece, shape in zip(pieces, shapes, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvViews:
    """One convolution's input in a step, (rows, inputs, channels): `head` is the left context, `body` the step's own.

    `tail` is the next step's context. `windows` overlap in the input; copied to `columns` they are `matrix`'s rows.
    """

    inputs: Tensor
    head: Tensor
    body: Tensor
    tail: Tensor
    windows: Tensor
    columns: Tensor
    matrix: Tensor


class ConvBuffers:
    """Memory for one convolution's input at a time, with the views that a step of a given size needs.

    Steps run one after another, and a convolution is done with its input before the next one starts: two buffers do.
    """

    def __init__(
        self, shapes: Sequence[ConvShape], max_rows: int, max_frames: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shapes = shapes
        inputs = max((shape.context + max_frames * shape.per_frame) * shape.channels for shape in shapes)
        columns = max(max_frames * shape.per_frame // shape.stride * shape.window * shape.channels for shape in shapes)
        self._inputs = torch.empty(max_rows * inputs, dtype=dtype, device=device)
        self._columns = torch.empty(max_rows * columns, dtype=dtype, device=device)
        self._views: dict[tuple[int, int], list[ConvViews]] = {}

    def views(self, rows: int, frames: int) -> list[ConvViews]:
        """For every convolution; made once for each size."""
        key = (rows, frames)
        if key not in self._views:
            self._views[key] = [self._view(shape, rows, frames * shape.per_frame) for shape in self._shapes]
        return self._views[key]

    def _view(self, shape: ConvShape, rows: int, time: int) -> ConvViews:
        context, channels, count = shape.context, shape.channels, time // shape.stride
        whole = context + time
        inputs = self._inputs[: rows * whole * channels].view(rows, whole, channels)
        columns = self._columns[: rows * count * shape.window * channels].view(rows, count, shape.window * channels)
        return ConvViews(
            inputs=inputs,
            head=inputs[:, :context],
            body=inputs[:, context:],
            tail=inputs[:, time:],
            windows=inputs.as_strided(columns.shape, (whole * channels, shape.stride * channels, 1)),
            columns=columns,
            matrix=columns.view(rows * count, shape.window * channels),
        )
