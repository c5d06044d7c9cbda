"""Small random Wan models of diffusers' with ours beside them."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel

from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.vae import WanVae
from streamsynth.models.wan.vae_config import VaeConfig
from streamsynth.models.wan.vae_weights import build_vae
from streamsynth.models.wan.weights import build_transformer

ERROR = 1e-4
"""How far float32 may be from the reference, in units of the largest value where that is above 1."""

SMALL: dict[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 3,
    "attention_head_dim": 20,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 24,
    "freq_dim": 16,
    "ffn_dim": 72,
    "num_layers": 3,
}
WITH_IMAGE = SMALL | {"in_channels": 9, "image_dim": 32, "added_kv_proj_dim": 60}


@torch.no_grad()
def reference_transformer(options: dict[str, Any], seed: int = 0) -> WanTransformer3DModel:
    """Every weight is random, those that start as ones or zeros too."""
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    torch.manual_seed(seed)
    reference = WanTransformer3DModel(**options).eval()
    for name, weight in reference.named_parameters():
        if weight.dim() == 1 or "scale_shift_table" in name or "pos_embed" in name:
            weight.add_(torch.randn_like(weight) * 0.2)
    return reference


def ours(reference: WanTransformer3DModel) -> WanTransformer:
    return build_transformer(WanConfig.from_hf(dict(reference.config)), reference.state_dict(), "the reference")


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_near(made: torch.Tensor, expected: torch.Tensor, error: float = ERROR) -> None:
    assert made.shape == expected.shape
    scale = max(1.0, float(expected.abs().max()))
    assert float((made - expected).abs().max()) <= error * scale


TINY_VAE: dict[str, Any] = {
    "base_dim": 4,
    "z_dim": 3,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
    "latents_mean": [0.1, -0.2, 0.3],
    "latents_std": [1.5, 0.7, 2.0],
}
RESIDUAL_VAE = TINY_VAE | {
    "decoder_base_dim": 8,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
}


@torch.no_grad()
def reference_vae(options: dict[str, Any], seed: int = 0) -> AutoencoderKLWan:
    """Every weight is random, those that start as ones or zeros too."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    reference = AutoencoderKLWan(**options).eval()
    for name, weight in reference.named_parameters():
        if weight.dim() == 1 or "gamma" in name:
            weight.add_(torch.randn_like(weight) * 0.2)
    return reference


def our_vae(reference: AutoencoderKLWan) -> WanVae:
    return build_vae(VaeConfig.from_hf(dict(reference.config)), reference.state_dict(), "the reference")
