"""Products with weights. The best call on the CPU, and the best order of a weight in memory, depend on the dtype.

Elsewhere a product is `F.linear` of a weight as checkpoints store it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEW_ROWS = 32
"""Up to so many rows a bfloat16 product is bound by reading the weight."""


class Linear(nn.Linear):
    """Takes and returns (rows, features). Its weights have no values until they are loaded."""

    def reset_parameters(self) -> None:
        """Draw none."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (rows, inputs) and weight (outputs, inputs) to (rows, outputs)."""
    rows = x.shape[0]
    if x.dtype is not torch.bfloat16 or rows > _FEW_ROWS or x.is_cuda:
        return F.linear(x, weight, bias)
    # oneDNN orders its second operand anew in every call: that has to be the small one.
    out = torch.mv(weight, x[0])[None] if rows == 1 else torch.mm(weight, x.t()).t().contiguous()
    return out if bias is None else out.add_(bias)


def add_product(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Add to `out` (rows, outputs), in place, what `product` returns."""
    if x.dtype is torch.float32 and bias is None:
        out.addmm_(x, weight.t())
    elif x.dtype is torch.bfloat16 and len(x) == 1 and bias is None:
        out[0].addmv_(weight, x[0])
    else:
        out.add_(product(x, weight, bias))


def input_major(weight: Tensor) -> Tensor:
    """The same (..., outputs, inputs) matrix, laid out input by input where products with few rows are faster so.

    That is float32 on the CPU: measured 1.3 to 2.2 times as fast for 4 to 16 rows, and equal for one.
    """
    if weight.is_cuda or weight.dtype is not torch.float32:
        return weight
    return weight.transpose(-1, -2).contiguous().transpose(-1, -2)


@torch.inference_mode()
def order_weights(module: nn.Module) -> None:
    """Lay out the weights of all its `Linear`s for products; call once they are loaded."""
    for part in module.modules():
        if isinstance(part, Linear):
            part.weight.data = input_major(part.weight.data)
