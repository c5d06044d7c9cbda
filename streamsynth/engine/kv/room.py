"""The pages of an autoregressive model: so many as its budget holds, and the positions that a request may then have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from streamsynth.engine.attention import PageMemory, QuantisedPageMemory
from streamsynth.engine.kv.sizing import MeasuredDevice, fitted_length, pool_pages


@dataclass(frozen=True, kw_only=True, slots=True)
class PageShape:
    """What a page holds: `page_size` positions of all layers, with `float8` in eight bits."""

    layers: int
    page_size: int
    kv_heads: int
    head_dim: int
    float8: bool = False

    @property
    def _kind(self) -> type[PageMemory]:
        return QuantisedPageMemory if self.float8 else PageMemory

    def nbytes(self, pages: int, like: Tensor) -> int:
        return pages * self._kind.page_bytes(
            layers=self.layers,
            page_size=self.page_size,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=like.dtype,
        )

    def open(self, pages: int, like: Tensor) -> PageMemory:
        """In the dtype and on the device of `like`."""
        return self._kind(
            layers=self.layers,
            pages=pages,
            page_size=self.page_size,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            like=like,
        )


@dataclass(frozen=True, slots=True)
class Room:
    """`pages` count the null page; `positions` are what a request of `gang_rows` rows may have, its prompt included."""

    memory: PageMemory
    pages: int
    positions: int


def make_room(
    shape: PageShape,
    like: Tensor,
    device: MeasuredDevice,
    run_at_largest: Callable[[], int],
    *,
    gang_rows: int,
    max_model_len: int,
    model_limit: int,
) -> Room:
    """`run_at_largest` as in `MeasuredDevice.kv_bytes`. Raises START_FAILED where no page fits, INVALID_VALUE for a
    length that does not."""
    pages = pool_pages(device.kv_bytes(run_at_largest), shape.nbytes(1, like))
    positions = fitted_length(
        max_model_len,
        model_limit=model_limit,
        usable_pages=(pages - 1) // gang_rows,
        page_size=shape.page_size,
    )
    return Room(shape.open(pages, like), pages, positions)
