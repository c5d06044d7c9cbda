"""What stands for a weight that is not on the device: it has a name, a shape and a dtype, and cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from streamsynth.errors import ErrorCode, StreamSynthError

# What a model or a library may ask of a parameter without its values.
_ASKED = ("shape", "dtype", "device", "requires_grad", "is_meta", "is_sparse", "is_quantized", "layout", "ndim", "grad")
_HARMLESS = {getattr(Tensor, name).__get__ for name in (*_ASKED, "nbytes", "itemsize", "is_cuda", "is_cpu")} | {
    getattr(Tensor, name)
    for name in ("size", "stride", "dim", "numel", "element_size", "is_floating_point", "is_complex", "__len__")
}


class AbsentWeight(Tensor):
    """Raises INTERNAL_ERROR, with the weight's path, whatever is computed with it.

    A plain meta tensor would not do: on the CPU a linear layer takes one for its weight and returns numbers.
    """

    # Makes isinstance(..., nn.Parameter) true, as the modules that hold it expect.
    _is_param = True
    path: str

    @staticmethod
    def of(tensor: Tensor, path: str) -> AbsentWeight:
        empty = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")
        absent = torch.Tensor._make_subclass(AbsentWeight, empty)
        absent.path = path
        return absent

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"AbsentWeight({self.path}, {tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _HARMLESS:
            return super().__torch_function__(func, types, args, kwargs or {})
        paths = [each.path for each in (*args, *(kwargs or {}).values()) if isinstance(each, AbsentWeight)]
        raise StreamSynthError(
            ErrorCode.INTERNAL_ERROR,
            f"{', '.join(paths) or 'an offloaded weight'} is not on the device: used outside of its block's entries",
        )
