"""The exponential linear unit and the transformers' activations, as fast as each device has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

# A tensor, because a Python number would be converted at every call.
_ONE = torch.tensor(1.0)


def elu_into(x: Tensor, out: Tensor) -> Tensor:
    """elu(x) written to `out`, which may be x; within 1e-7 of the exact value in float32."""
    if x.device.type == "cpu" and x.dtype == torch.float32:
        # Four vectorised passes take half the time of the one kernel, which spends it in expm1.
        negative = x.clamp_max(0.0).exp_().sub_(_ONE)
        return torch.maximum(x, negative, out=out)
    return cast(Tensor, torch.ops.aten.elu.out(x, out=out))


def gelu(x: Tensor) -> Tensor:
    if x.device.type == "cpu" and x.dtype == torch.float32:
        # For the few values of a step, setting up the one kernel takes longer than these four passes.
        half = x * 0.5
        return torch.addcmul(half, half, (x * math.sqrt(0.5)).erf_())
    return F.gelu(x)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
