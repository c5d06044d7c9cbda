"""Models that paint nothing: random weights at any size, for benches of speed."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from streamsynth.models.wan.vae_weights import lay_channels_last

Model = TypeVar("Model", bound=nn.Module)


@torch.inference_mode()
def with_random_weights(
    model: Model, *, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Model:
    """`model` was made on the meta device. Activations keep their scale from layer to layer."""
    generator = torch.Generator(device).manual_seed(seed)
    model = model.to(dtype).to_empty(device=device).requires_grad_(False).eval()
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            weight.normal_(0.0, weight[0].numel() ** -0.5, generator=generator)
    lay_channels_last(model)
    return model
