"""Shared memory between two processes: a memfd that one side fills and the other reads and gives back, slot by slot.

The memory has no name in any file system, so nothing is left of it once both processes are gone, however they went.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import insort
from math import prod

import numpy as np
import numpy.typing as npt

from streamsynth.workers.wire import INLINE_BYTES, Array

PAGE_BYTES = 4096


def create_memory(nbytes: int) -> int:
    """The descriptor of new anonymous memory of `nbytes`; its pages are only taken when first written."""
    descriptor = os.memfd_create("streamsynth", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, nbytes)
    return descriptor


class SlotAllocator:
    """First-fit slots of whole pages: low addresses are used again first, so that they stay cached. Not thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.in_use = 0
        self._free: list[tuple[int, int]] = [(0, nbytes)]
        self._sizes: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int | None:
        """The offset of a free slot, or None if none is large enough now. Raises ValueError if none ever will be."""
        size = -(-max(nbytes, 1) // PAGE_BYTES) * PAGE_BYTES
        if size > self.nbytes:
            raise ValueError(f"an array of {nbytes} bytes does not fit the shared memory of {self.nbytes} bytes")
        for index, (offset, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, room - size)
                self._sizes[offset] = size
                self.in_use += size
                return offset
        return None

    def release(self, offset: int) -> None:
        """Give a slot back; raises KeyError if it is not in use. Neighbouring free slots become one."""
        size = self._sizes.pop(offset)
        self.in_use -= size
        insort(self._free, (offset, size))
        merged: list[tuple[int, int]] = []
        for start, room in self._free:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self._free = merged


class MemoryWriter:
    """The filling side. `store` and `release` may be called from different threads."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._map = mmap.mmap(descriptor, nbytes)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._slots = SlotAllocator(nbytes)
        self._released = threading.Condition()
        self._closed = False

    @property
    def in_use(self) -> int:
        return self._slots.in_use

    def store(self, array: npt.NDArray[np.generic]) -> Array:
        """Copy an array out to the other side; blocks while no slot is free. Raises ValueError if it can never fit."""
        array = np.ascontiguousarray(array)
        if array.nbytes <= INLINE_BYTES:
            return Array(array.dtype.str, array.shape, inline=array.tobytes(), nbytes=array.nbytes)
        with self._released:
            while (offset := self._slots.allocate(array.nbytes)) is None:
                if self._closed:
                    raise BrokenPipeError("the shared memory is closed")
                self._released.wait()
        target = self._bytes[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(target, array)
        return Array(array.dtype.str, array.shape, offset=offset, nbytes=array.nbytes)

    def release(self, offsets: tuple[int, ...]) -> None:
        with self._released:
            for offset in offsets:
                self._slots.release(offset)
            self._released.notify_all()

    def close(self) -> None:
        """Wake a blocked `store`, which then fails. The map itself goes when its last array does."""
        with self._released:
            self._closed = True
            self._released.notify_all()


class MemoryReader:
    """The reading side. Views stay valid until their slot is released to the writer."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ), np.uint8)

    def view(self, array: Array) -> npt.NDArray[np.generic]:
        """A read-only array over the frame's own bytes or over the shared slot; copies nothing."""
        dtype = np.dtype(array.dtype)
        if prod(array.shape) * dtype.itemsize != array.nbytes:
            raise ValueError(f"shape {array.shape} of {dtype} does not have {array.nbytes} bytes")
        if array.offset is None:
            flat = np.frombuffer(array.inline or b"", dtype)
        else:
            flat = self._bytes[array.offset : array.offset + array.nbytes].view(dtype)
        return flat.reshape(array.shape)
