"""How many pages a pool has: from bytes that somebody names, or from what the device has left once the model is there.

The automatic way reserves a share of the device *before* the model is loaded, runs the model once at its largest, and
gives to pages what the share has over the peak of that run: what is free by then does not count, the peak does. On a
CPU nothing is measured: its memory is everybody's, so bytes are named there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value


@dataclass(frozen=True, slots=True)
class KvBudget:
    """What a deploy file says: a number of bytes, or a share of a CUDA device's memory (0 to 1). Bytes beside a share
    are taken as they are, 0 of them are to be measured; where nothing is said, there are `otherwise` bytes."""

    kv_cache_memory_bytes: int | None
    gpu_memory_utilization: float | None
    otherwise: int | None = None

    def __post_init__(self) -> None:
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes < 0:
            raise invalid_value("kv_cache_memory_bytes", self.kv_cache_memory_bytes, "0 (measure) or more bytes")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise invalid_value("gpu_memory_utilization", share, "above 0, and 1 at most")
        if self.explicit is None and share is None:
            raise invalid_value("kv_cache_memory_bytes", self.kv_cache_memory_bytes, "set, or gpu_memory_utilization")

    @property
    def explicit(self) -> int | None:
        """Bytes that are not to be measured."""
        silent = self.kv_cache_memory_bytes is None and self.gpu_memory_utilization is None
        return self.otherwise if silent else self.kv_cache_memory_bytes or None


class MeasuredDevice:
    """A device as it is before a model is loaded there. `budget` decides the bytes for pages.

    Raises START_FAILED if so much is not free, INVALID_VALUE for a share of a device that is not CUDA.
    """

    def __init__(self, budget: KvBudget, device: torch.device) -> None:
        self._budget = budget
        self.device = device
        self._requested_bytes = 0
        if budget.explicit is None:
            if device.type != "cuda":
                limit = "a share of a CUDA device: on the CPU name kv_cache_memory_bytes"
                raise invalid_value("gpu_memory_utilization", budget.gpu_memory_utilization, limit)
            assert budget.gpu_memory_utilization is not None
            free, total = torch.cuda.mem_get_info(device)
            self._requested_bytes = requested_bytes(budget.gpu_memory_utilization, free_bytes=free, total_bytes=total)
            self._others_bytes = total - free - torch.cuda.memory_reserved(device)

    def kv_bytes(self, run_at_largest: Callable[[], int]) -> int:
        """The bytes for pages. `run_at_largest` is called once where they are measured, with the model loaded; it
        returns how many bytes of pages it took itself.
        """
        if self._budget.explicit is not None:
            return self._budget.explicit
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        pages = run_at_largest()
        torch.cuda.synchronize(self.device)
        peak = self._others_bytes + torch.cuda.max_memory_reserved(self.device) - pages
        torch.cuda.empty_cache()
        return remaining_bytes(self._requested_bytes, peak)


def requested_bytes(share: float, *, free_bytes: int, total_bytes: int) -> int:
    """`share` of the whole device; raises START_FAILED if less is free."""
    requested = int(share * total_bytes)
    if requested > free_bytes:
        message = (
            f"gpu_memory_utilization {share} asks for {requested} of the device's {total_bytes} bytes,"
            f" of which {free_bytes} are free"
        )
        raise StreamSynthError(ErrorCode.START_FAILED, message, param="gpu_memory_utilization")
    return requested


def remaining_bytes(requested: int, peak: int) -> int:
    """What is left for pages; raises START_FAILED if nothing is."""
    if peak >= requested:
        message = f"no memory remains for pages: requested_memory={requested} bytes, non_kv_cache_memory={peak} bytes"
        raise StreamSynthError(ErrorCode.START_FAILED, message, param="gpu_memory_utilization")
    return requested - peak


def pool_pages(kv_bytes: int, page_bytes: int) -> int:
    """Pages of a pool, the one that is never used included; raises START_FAILED for fewer than two."""
    pages = kv_bytes // page_bytes
    if pages < 2:
        message = f"{kv_bytes} bytes for pages of {page_bytes} are no pool: it needs at least two"
        raise StreamSynthError(ErrorCode.START_FAILED, message, param="kv_cache_memory_bytes")
    return pages


def fitted_length(max_model_len: int, *, model_limit: int, usable_pages: int, page_size: int) -> int:
    """The positions a request may have: as asked, or for -1 what the model and the usable pages both hold.

    Raises INVALID_VALUE for a length above the model's, or that no empty pool could hold.
    """
    room = usable_pages * page_size
    if max_model_len == -1:
        return min(model_limit, room)
    if not 0 < max_model_len <= min(model_limit, room):
        raise invalid_value(
            "max_model_len",
            max_model_len,
            f"-1, or 1 to {min(model_limit, room)}: the model's limit is {model_limit},"
            f" {usable_pages} usable pages of {page_size} hold {room}",
        )
    return max_model_len
