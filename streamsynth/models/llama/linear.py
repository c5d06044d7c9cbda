"""Products with weights. On the CPU, a weight's best order in memory depends on its dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (rows, inputs) and weight (outputs, inputs), maybe `packed`, to (rows, outputs)."""
    if weight.is_mkldnn:
        made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return made
    return F.linear(x, weight, bias)


def add_product(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Add to `out` (rows, outputs), in place, what `product` returns."""
    if bias is None and not weight.is_mkldnn:
        out.addmm_(x, weight.t())
    else:
        out.add_(product(x, weight, bias))


def packed(weight: Tensor) -> Tensor:
    """A bfloat16 weight on the CPU in oneDNN's own order, a copy for `product` alone; any other as it is.

    Else oneDNN orders it anew in every call. Measured a sixth faster than turning the product around, up to 16 rows.
    """
    if weight.dtype is not torch.bfloat16 or weight.is_cuda or not _multiplies_bfloat16():
        return weight
    made: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return made


def _multiplies_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def input_major(weight: Tensor) -> Tensor:
    """The same (..., outputs, inputs) matrix, laid out input by input where products with few rows are faster so.

    That is float32 on the CPU: measured 1.3 to 2.2 times as fast for 4 to 16 rows, and equal for one.
    """
    if weight.is_cuda or weight.dtype is not torch.float32:
        return weight
    return weight.transpose(-1, -2).contiguous().transpose(-1, -2)


@torch.inference_mode()
def order_weights(module: nn.Module) -> None:
    """Lay out the weights of all its linears for products; call once they are loaded."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.data = input_major(part.weight.data)
