"""Where blocks lie on the host: each in a pinned slab, or its tensors where they are (a mapped file) and staged."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from streamsynth.engine.offload.slab import SlabLayout, slab_memory
from streamsynth.engine.offload.transfer import ARRIVED, Arrival, Fence, Transfer
from streamsynth.errors import ErrorCode, StreamSynthError

# Pinned for every device of the process.
_PORTABLE = 1


class HostBlocks(Protocol):
    """The blocks of one model by number, in the order in which they were added."""

    host_bytes: int

    def slot_bytes(self, layout: SlabLayout) -> int:
        """What a slot needs for such a block."""

    def add(self, layout: SlabLayout, tensors: Sequence[Tensor]) -> None: ...

    def load(self, block: int, target: Tensor, after: Fence) -> Arrival:
        """Begin to bring a block's slab to `target`, bytes on the device, once `after` is past."""

    def tensors(self, block: int) -> list[Tensor]:
        """On the host, whole."""

    def close(self) -> None:
        """Let go of everything; tensors that were handed out stay."""


class PinnedSlabs:
    """A private copy of each block."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._slabs: list[tuple[SlabLayout, HostMemory]] = []
        self.host_bytes = 0

    def slot_bytes(self, layout: SlabLayout) -> int:
        return layout.nbytes

    def add(self, layout: SlabLayout, tensors: Sequence[Tensor]) -> None:
        memory = HostMemory(layout.nbytes, pinned=self._transfer.device.type == "cuda")
        layout.pack(tensors, memory.slab)
        self._slabs.append((layout, memory))
        self.host_bytes += layout.nbytes

    def load(self, block: int, target: Tensor, after: Fence) -> Arrival:
        layout, memory = self._slabs[block]
        return self._transfer.copy(memory.slab, target[: layout.nbytes], after)

    def tensors(self, block: int) -> list[Tensor]:
        layout, memory = self._slabs[block]
        return layout.views(memory.slab)

    def close(self) -> None:
        self._slabs.clear()


class StagedBlocks:
    """The tensors as they are, with no private copy. A thread packs a block into one of two staging slabs, from which
    it is copied; a staging slab is packed again only when the device has done copying from it."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._blocks: list[tuple[SlabLayout, Sequence[Tensor]]] = []
        self._staging: list[HostMemory] = []
        self._copies: list[Arrival] = [ARRIVED, ARRIVED]
        self._turn = 0
        self._packer = ThreadPoolExecutor(1, "offload-staging")
        self.host_bytes = 0

    def slot_bytes(self, layout: SlabLayout) -> int:
        return layout.nbytes

    def add(self, layout: SlabLayout, tensors: Sequence[Tensor]) -> None:
        self._blocks.append((layout, tuple(tensors)))

    def load(self, block: int, target: Tensor, after: Fence) -> Arrival:
        if not self._staging:
            self._open_staging()
        self._turn = 1 - self._turn
        return _StagedArrival(self._packer.submit(self._pack_and_copy, block, target, after, self._turn))

    def tensors(self, block: int) -> list[Tensor]:
        return list(self._blocks[block][1])

    def close(self) -> None:
        self._packer.shutdown()
        self._blocks.clear()
        self._staging.clear()

    def _open_staging(self) -> None:
        largest = max(layout.nbytes for layout, _ in self._blocks)
        pinned = self._transfer.device.type == "cuda"
        self._staging = [HostMemory(largest, pinned=pinned) for _ in self._copies]
        self.host_bytes = largest * len(self._staging)

    def _pack_and_copy(self, block: int, target: Tensor, after: Fence, turn: int) -> Arrival:
        layout, tensors = self._blocks[block]
        self._copies[turn].synchronize()
        slab = self._staging[turn].slab[: layout.nbytes]
        layout.pack(tensors, slab)
        self._copies[turn] = self._transfer.copy(slab, target[: layout.nbytes], after)
        return self._copies[turn]


class _StagedArrival:
    def __init__(self, packed: Future[Arrival]) -> None:
        self._packed = packed

    def wait(self, asked: Fence = None) -> None:
        self._packed.result().wait(asked)

    def synchronize(self) -> None:
        self._packed.result().synchronize()


class HostMemory:
    """`slab`: bytes that begin on a slab's boundary, pinned as long as this object lives.

    Raises START_FAILED where they cannot be pinned: a copy from other memory is many times slower and holds the host
    up. Registered rather than taken from torch's pinned allocator, which rounds up to a power of two.
    """

    def __init__(self, nbytes: int, *, pinned: bool) -> None:
        self.slab = _whole_pages(nbytes) if pinned and nbytes else slab_memory(nbytes, torch.device("cpu"))
        if pinned and nbytes:
            self._pin(self.slab)

    def _pin(self, slab: Tensor) -> None:
        runtime = torch.cuda.cudart()
        error = int(runtime.cudaHostRegister(slab.data_ptr(), slab.nbytes, _PORTABLE))
        if error != 0 or not slab.is_pinned():
            raise StreamSynthError(
                ErrorCode.START_FAILED, f"cannot pin {slab.nbytes} bytes of host memory (CUDA error {error})"
            )
        # The arguments keep the memory until it is no longer registered.
        weakref.finalize(self, _unpin, runtime, slab).atexit = False


def _whole_pages(nbytes: int) -> Tensor:
    """Pages are registered, and one page only once: no slab shares any with another."""
    memory = mmap.mmap(-1, nbytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    with torch.inference_mode(False):
        return torch.frombuffer(memory, dtype=torch.uint8)


def _unpin(runtime: object, slab: Tensor) -> None:
    # A copy may still be reading.
    torch.cuda.synchronize()
    runtime.cudaHostUnregister(slab.data_ptr())  # type: ignore[attr-defined]  # torch types no CUDA runtime
