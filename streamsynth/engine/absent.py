"""What stands for a weight that is not there as such: it has a shape, a dtype and a device, and cannot be used."""

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
    """Raises INTERNAL_ERROR, saying what it is and `why` not, whatever is computed with it.

    A plain meta tensor would not do: on the CPU a linear layer takes one for its weight and returns numbers.
    """

    # Makes isinstance(..., nn.Parameter) true, as the modules that hold it expect.
    _is_param = True
    path: str
    why: str

    @staticmethod
    def of(tensor: Tensor, path: str, why: str, *, dtype: torch.dtype | None = None, device: torch.device) -> Tensor:
        """In the shape of `tensor`."""
        absent: AbsentWeight = torch.Tensor._make_wrapper_subclass(
            AbsentWeight, tensor.shape, strides=tensor.stride(), dtype=dtype or tensor.dtype, device=device
        )
        absent.path, absent.why = path, why
        return absent

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no types
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
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch's is
        raise cls._refusal((*args, *(kwargs or {}).values()))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares no class method
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise cls._refusal((*args, *(kwargs or {}).values()))

    @staticmethod
    def _refusal(given: Sequence[object]) -> StreamSynthError:
        found = [each for each in given if isinstance(each, AbsentWeight)]
        what = f"{found[0].path} {found[0].why}" if found else "a weight among a list of tensors is absent"
        return StreamSynthError(ErrorCode.INTERNAL_ERROR, what)
