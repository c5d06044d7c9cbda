"""A linear layer whose weight is kept in float8, multiplied there by tensor cores that can, else in float32."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.engine.quant.float8 import FLOAT8, Float8, quantised, quantised_weight

# The matrix units multiply float8 in multiples of so many columns and rows of the weight.
_TILE = 16


class Float8Linear(nn.Module):
    """In place of an `nn.Linear`: `weight` is float8 (out, in), `weight_scale` float32 (1,), the bias as it was.

    Takes and gives what the `nn.Linear` did. One scale for all rows of an input: rows that are batched together share
    their rounding.
    """

    def __init__(self, weight: Float8, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.values.shape
        self.weight = nn.Parameter(weight.values, requires_grad=False)
        self.weight_scale = nn.Parameter(weight.scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @classmethod
    def of(cls, linear: nn.Linear, path: str, device: torch.device | None = None) -> Float8Linear:
        """Quantised on `device` (default: where it is), kept where `linear` is. Raises INVALID_VALUE for a weight that
        is not finite."""
        home = linear.weight.device
        made = quantised_weight(linear.weight.detach().to(device or home), f"{path}.weight")
        return cls(Float8(made.values.to(home), made.scale.to(home)), linear.bias)

    @classmethod
    def empty(cls, linear: nn.Linear) -> Float8Linear:
        """Of the right shapes on the meta device, for weights that come from elsewhere."""
        weight = Float8(torch.empty(linear.weight.shape, dtype=FLOAT8, device="meta"), torch.empty(1, device="meta"))
        return cls(weight, None if linear.bias is None else torch.empty_like(linear.bias, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if not rows.shape[0]:
            return x.new_empty(*x.shape[:-1], self.out_features)
        given = quantised(rows)
        if multiplies_float8(x.device) and self.in_features % _TILE == self.out_features % _TILE == 0:
            out = self._on_tensor_cores(given, x.dtype)
        else:
            weight = Float8(self.weight, self.weight_scale).dequantised()
            out = F.linear(given.dequantised(), weight, None if self.bias is None else self.bias.float()).to(x.dtype)
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _on_tensor_cores(self, given: Float8, dtype: torch.dtype) -> Tensor:
        # In float32 the product cannot add a bias by itself.
        fused = None if dtype is torch.float32 or self.bias is None else self.bias.to(dtype)
        out = torch._scaled_mm(
            given.values, self.weight.t(), scale_a=given.scale, scale_b=self.weight_scale, bias=fused, out_dtype=dtype
        )
        return out if fused is not None or self.bias is None else out + self.bias


@functools.cache
def multiplies_float8(device: torch.device) -> bool:
    """Whether the device has float8 matrix units: compute capability 8.9, and 9.0 and newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
