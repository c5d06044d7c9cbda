"""One block's tensors in one run of bytes, each on a 256-byte boundary: one copy moves a block.

On a lesser boundary another matrix kernel may be chosen, and the bits of a product differ from the resident model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class SlabTensor:
    """`stride` is in elements; `offset` and `nbytes` are bytes of the slab."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """Equal for blocks that are built alike."""

    tensors: tuple[SlabTensor, ...]
    nbytes: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> SlabLayout:
        """Strides are kept where the elements lie densely (a transposed matrix); else the slab's are row-major."""
        laid: list[SlabTensor] = []
        offset = 0
        for tensor in tensors:
            stride = tensor.stride() if _is_dense(tensor) else _row_major(tensor.shape)
            nbytes = tensor.numel() * tensor.element_size()
            laid.append(SlabTensor(tensor.dtype, tuple(tensor.shape), tuple(stride), offset, nbytes))
            offset = aligned(offset + nbytes)
        return cls(tuple(laid), offset)

    def views(self, slab: Tensor) -> list[Tensor]:
        """The tensors in `slab`, bytes of at least this layout's size."""
        return [
            slab[each.offset : each.offset + each.nbytes].view(each.dtype).as_strided(each.shape, each.stride)
            for each in self.tensors
        ]

    def pack(self, tensors: Sequence[Tensor], slab: Tensor) -> None:
        """Copy `tensors` to their places."""
        for view, tensor in zip(self.views(slab), tensors, strict=True):
            view.copy_(tensor)


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment


def slab_memory(nbytes: int, device: torch.device) -> Tensor:
    """Uninitialised bytes that begin on a boundary themselves; an ordinary tensor also under inference mode, for those
    who use it later may be outside of that."""
    with torch.inference_mode(False):
        memory = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
        start = -memory.data_ptr() % ALIGNMENT
        return memory[start : start + nbytes]


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their run of memory without gap or overlap, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
