"""A linear layer whose weight is kept in float8, multiplied there by tensor cores that can, else in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.engine.absent import AbsentWeight
from streamsynth.engine.quant.float8 import FLOAT8, Float8, quantised, quantised_weight
from streamsynth.errors import invalid_value

# The matrix units multiply float8 in multiples of so many columns and rows of the weight.
_TILE = 16


class Float8Linear(nn.Module):
    """In place of an `nn.Linear`: takes and gives what that did. One scale for all rows of an input: rows that are
    batched together share their rounding.

    `weight_bytes` (out, in) are float8 under the name of int8: models that cast their input to the dtype of a layer's
    parameters leave it alone for int8, and a model's own `to(dtype)` does not convert them. `weight_scale` is float32
    (1,). `weight` has the shape and the dtype that the `nn.Linear`'s had, for those who ask, and no values.
    """

    def __init__(self, weight: Float8, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.values.shape
        self.dtype = dtype
        self.weight_bytes = nn.Parameter(weight.values.view(torch.int8), requires_grad=False)
        self.weight_scale = nn.Parameter(weight.scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        device = self.weight_bytes.device
        return AbsentWeight.of(self.weight_bytes, "the weight", "is quantised", dtype=self.dtype, device=device)

    @property
    def float8(self) -> Float8:
        return Float8(self.weight_bytes.view(FLOAT8), self.weight_scale)

    @classmethod
    def of(
        cls, linear: nn.Linear, path: str, device: torch.device | None = None, *, stay: bool = False
    ) -> Float8Linear:
        """Quantised on `device` (default: where it is), kept there if it is to `stay`, else where `linear` is. Raises
        INVALID_VALUE for a weight that is not finite."""
        home = device if stay and device is not None else linear.weight.device
        made = quantised_weight(linear.weight.detach().to(device or linear.weight.device), f"{path}.weight")
        bias = None if linear.bias is None else linear.bias.to(home)
        return cls(Float8(made.values.to(home), made.scale.to(home)), bias, linear.weight.dtype)

    @classmethod
    def empty(cls, linear: nn.Linear) -> Float8Linear:
        """Of the right shapes on the meta device, for weights that come from elsewhere."""
        weight = Float8(torch.empty(linear.weight.shape, dtype=FLOAT8, device="meta"), torch.empty(1, device="meta"))
        bias = None if linear.bias is None else torch.empty_like(linear.bias, device="meta")
        return cls(weight, bias, linear.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.element_size() < 2 or not x.is_floating_point():
            raise invalid_value("x", str(x.dtype), "float32, bfloat16 or float16 where a layer is quantised")
        rows = x.reshape(-1, self.in_features)
        if not rows.shape[0]:
            return x.new_empty(*x.shape[:-1], self.out_features)
        if multiplies_float8(x.device) and self.in_features % _TILE == self.out_features % _TILE == 0:
            out = self._on_tensor_cores(_quantised_there(rows), x.dtype)
        else:
            given = quantised(rows)
            out = F.linear(
                given.dequantised(), self.float8.dequantised(), None if self.bias is None else self.bias.float()
            ).to(x.dtype)
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """A new device takes all along; a new dtype is none of the scale's."""
        scale = self.weight_scale.data
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch annotates no return
        self.weight_scale.data = scale.to(self.weight_scale.device)
        return self

    def _on_tensor_cores(self, given: Float8, dtype: torch.dtype) -> Tensor:
        # In float32 the product cannot add a bias by itself.
        fused = None if dtype is torch.float32 or self.bias is None else self.bias.to(dtype)
        weight = self.float8
        out = torch._scaled_mm(
            given.values,
            weight.values.t(),
            scale_a=given.scale,
            scale_b=weight.scale,
            bias=fused,
            out_dtype=dtype,
            # Sums of fewer bits, cut and not rounded: less than a 16-bit result's rounding, 4 % of a long float32 one.
            use_fast_accum=dtype is not torch.float32,
        )
        return out if fused is not None or self.bias is None else out + self.bias


def _quantised_there(rows: Tensor) -> Float8:
    from streamsynth.engine.kernels.float8 import to_float8

    return Float8(*to_float8(rows))


@functools.cache
def multiplies_float8(device: torch.device) -> bool:
    """Whether the device has float8 matrix units: compute capability 8.9, and 9.0 and newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
