"""From the names of TAEHV, where a network is one list of layers, to ours."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from streamsynth.errors import invalid_value
from streamsynth.models.llama.weights import load_strict, read_tensors
from streamsynth.models.wan.settings import read_settings
from streamsynth.models.wan.tiny_vae import TinyVae, TinyVaeConfig
from streamsynth.models.wan.vae_weights import lay_channels_last
from streamsynth.models.wan.weights import DIFFUSERS_STEM

_NAME = re.compile(r"(encoder|decoder)\.(\d+)\.(?:conv\.)?(?:(\d)\.)?(weight|bias)")
_CONVOLUTIONS = {"0": "first", "2": "second", "4": "third"}


def tiny_vae_weights(tensors: Mapping[str, Tensor], config: TinyVaeConfig) -> dict[str, Tensor]:
    """The state dict of `TinyVae`; a name that is not known stays, for `load_strict` to refuse.

    Weights made for more frames than `growth` asks for are cut to those of the last, as TAEHV does.
    """
    state = {}
    for name, tensor in tensors.items():
        found = _NAME.fullmatch(name)
        ours = _our_name(found, config) if found else None
        if ours is not None and ours.endswith((".grow.weight", ".pool.weight")):
            tensor = tensor.flatten(1)
        if ours is not None and ours.endswith(".grow.weight"):
            stage = int(ours.split(".")[2])
            tensor = tensor[-config.growth[stage] * config.decoder_widths[stage] :]
        state[ours or name] = tensor
    return state


def _our_name(found: re.Match[str], config: TinyVaeConfig) -> str | None:
    side, place, inner, kind = found[1], int(found[2]), found[3], found[4]
    layers = _encoder_layers(config) if side == "encoder" else _decoder_layers(config)
    layer = layers[place] if place < len(layers) else None
    if layer is None or ("blocks" in layer) != (inner in _CONVOLUTIONS):
        return None
    return f"{side}.{layer}.{kind}" if inner is None else f"{side}.{layer}.{_CONVOLUTIONS[inner]}.{kind}"


def _encoder_layers(config: TinyVaeConfig) -> list[str | None]:
    """The list there, layer by layer, in our names; None is a layer without weights."""
    layers: list[str | None] = ["conv_in", None]
    for stage in range(len(config.growth)):
        blocks = [f"blocks.{block}" for block in range(config.encoder_blocks)]
        layers += [f"stages.{stage}.{layer}" for layer in ("pool", "conv", *blocks)]
    return [*layers, "conv_out"]


def _decoder_layers(config: TinyVaeConfig) -> list[str | None]:
    layers: list[str | None] = [None, "conv_in", None]
    for stage, blocks in enumerate(config.decoder_blocks[:-1]):
        layers += [f"stages.{stage}.blocks.{block}" for block in range(blocks)]
        layers += [None, f"stages.{stage}.grow", f"stages.{stage}.conv"]
    layers += [f"blocks.{block}" for block in range(config.decoder_blocks[-1])]
    return [*layers, None, "conv_out"]


def tiny_vae_config(tensors: Mapping[str, Tensor]) -> TinyVaeConfig:
    """The sizes of a published TAEHV for Wan, told by its latents; raises INVALID_VALUE for another."""
    latents = tensors["decoder.1.weight"].shape[1] if "decoder.1.weight" in tensors else 0
    if latents not in (16, 48):
        raise invalid_value("decoder.1.weight", latents, "for the 16 latent channels of Wan 2.1 or the 48 of Wan 2.2")
    return TinyVaeConfig() if latents == 16 else TinyVaeConfig(latent_channels=48, patch_size=2)


def build_tiny_vae(
    config: TinyVaeConfig,
    state: Mapping[str, Tensor],
    source: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> TinyVae:
    """An autoencoder ready to run from tensors with our names; `source` is named in errors."""
    with torch.device("meta"):
        vae = TinyVae(config)
    vae = vae.to(dtype).to_empty(device=device)
    load_strict(vae, state, source)
    lay_channels_last(vae)
    return vae.requires_grad_(False).eval()


def load_tiny_vae(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> TinyVae:
    """Read the `config.json` and safetensors that `streamsynth models convert` or training wrote; blocking.

    Raises START_FAILED for names that do not fit, UNSUPPORTED_FIELD or INVALID_VALUE for a model not built here.
    """
    ours = frozenset(field.name for field in fields(TinyVaeConfig))
    settings = read_settings(json.loads((folder / "config.json").read_text()), model="tiny VAE", ours=ours, fixed={})
    tensors = read_tensors(folder, DIFFUSERS_STEM)
    return build_tiny_vae(TinyVaeConfig(**settings), tensors, str(folder), dtype=dtype, device=device)
