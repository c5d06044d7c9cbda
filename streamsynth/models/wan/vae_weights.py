"""From the names of diffusers' `AutoencoderKLWan` to ours."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from streamsynth.models.llama.weights import load_strict, read_tensors
from streamsynth.models.wan.vae import WanVae
from streamsynth.models.wan.vae_config import VaeConfig
from streamsynth.models.wan.weights import DIFFUSERS_STEM

_RENAMED = (
    ("mid_block.resnets.0.", "mid_block.first."),
    ("mid_block.resnets.1.", "mid_block.second."),
    ("mid_block.attentions.0.", "mid_block.attention."),
    (".upsamplers.0.", ".upsampler."),
    (".resample.1.", ".conv."),
)
_FLAT = re.compile(r"encoder\.down_blocks\.(\d+)\.(.+)")


def vae_weights(tensors: Mapping[str, Tensor], config: VaeConfig) -> dict[str, Tensor]:
    """The state dict of `WanVae`; a name that is not known stays, for `load_strict` to refuse."""
    return {_our_name(name, config): _our_shape(name, tensor) for name, tensor in tensors.items()}


def _our_name(name: str, config: VaeConfig) -> str:
    flat = _FLAT.fullmatch(name)
    if flat and not config.is_residual:
        # Wan 2.1's encoder is one list there: the residual blocks of a stage, then its downsampling.
        block, place = divmod(int(flat[1]), config.num_res_blocks + 1)
        kind = f"resnets.{place}" if place < config.num_res_blocks else "downsampler"
        name = f"encoder.down_blocks.{block}.{kind}.{flat[2]}"
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return name


def _our_shape(name: str, tensor: Tensor) -> Tensor:
    if name.endswith(".gamma"):
        return tensor.flatten()
    if name.endswith((".to_qkv.weight", ".proj.weight")):
        return tensor.flatten(1)
    return tensor


def build_vae(
    config: VaeConfig,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> WanVae:
    """An autoencoder ready to run from tensors with diffusers' names; `source` is named in errors."""
    with torch.device("meta"):
        vae = WanVae(config)
    vae = vae.to(dtype).to_empty(device=device)
    load_strict(vae, vae_weights(tensors, config), source)
    lay_channels_last(vae)
    return vae.requires_grad_(False).eval()


def lay_channels_last(vae: nn.Module) -> None:
    """The order of convolutions' weights in memory that fits the pictures'."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for weight in vae.parameters():
        if weight.dim() in formats:
            weight.data = weight.data.contiguous(memory_format=formats[weight.dim()])


def load_vae(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> WanVae:
    """Read `config.json` and safetensors of a `vae` folder; blocking.

    Raises START_FAILED for names that do not fit, UNSUPPORTED_FIELD or INVALID_VALUE for a model not built here.
    """
    config = VaeConfig.from_hf(json.loads((folder / "config.json").read_text()))
    return build_vae(config, read_tensors(folder, DIFFUSERS_STEM), str(folder), dtype=dtype, device=device)
