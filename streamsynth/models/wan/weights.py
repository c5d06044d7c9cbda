"""From the names of diffusers' Wan transformer to ours: fused projections, and blocks named for what they do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from streamsynth.models.llama.weights import load_strict, read_tensors
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.model import WanTransformer

DIFFUSERS_STEM = "diffusion_pytorch_model"
"""What diffusers calls the tensors of a component; transformers calls them "model"."""

_TIME, _TEXT, _IMAGE = (f"condition_embedder.{part}_embedder." for part in ("time", "text", "image"))
_TOP = {
    f"{_TIME}linear_1": "time.first",
    f"{_TIME}linear_2": "time.second",
    "condition_embedder.time_proj": "time.to_layers",
    f"{_TEXT}linear_1": "text_in",
    f"{_TEXT}linear_2": "text_out",
    "proj_out": "head",
}
_IMAGE_BRANCH = {
    f"{_IMAGE}norm1": "image.norm_in",
    f"{_IMAGE}ff.net.0.proj": "image.up",
    f"{_IMAGE}ff.net.2": "image.down",
    f"{_IMAGE}norm2": "image.norm_out",
}
_BLOCK = {
    "attn1.to_out.0": "self_attention.out",
    "attn2.to_q": "cross_attention.q",
    "attn2.to_out.0": "cross_attention.out",
    "norm2": "cross_norm",
    "ffn.net.0.proj": "feed_forward.up",
    "ffn.net.2": "feed_forward.down",
}
_BLOCK_NORMS = {
    "attn1.norm_q": "self_attention.norm_q",
    "attn1.norm_k": "self_attention.norm_k",
    "attn2.norm_q": "cross_attention.norm_q",
    "attn2.norm_k": "cross_attention.norm_k",
}
_BLOCK_FUSED = {
    "self_attention.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "cross_attention.kv": ("attn2.to_k", "attn2.to_v"),
}
_BLOCK_IMAGE_FUSED = {"cross_attention.image_kv": ("attn2.add_k_proj", "attn2.add_v_proj")}
# Some checkpoints carry a norm for image queries; no implementation reads it.
_UNREAD = "attn2.norm_added_q.weight"


def transformer_weights(tensors: Mapping[str, Tensor], config: WanConfig) -> dict[str, Tensor]:
    """The state dict of `WanTransformer`. What has no place in it keeps its name, for `load_strict` to refuse."""
    left = {name: tensor for name, tensor in tensors.items() if not name.endswith(_UNREAD)}
    state: dict[str, Tensor] = {}

    def move(theirs: str, ours: str, kinds: tuple[str, ...] = ("weight", "bias")) -> None:
        for kind in kinds:
            if f"{theirs}.{kind}" in left:
                state[f"{ours}.{kind}"] = left.pop(f"{theirs}.{kind}")

    def fuse(theirs: tuple[str, ...], ours: str) -> None:
        for kind in ("weight", "bias"):
            names = [f"{part}.{kind}" for part in theirs]
            if all(name in left for name in names):
                state[f"{ours}.{kind}"] = torch.cat([left.pop(name) for name in names])

    def move_table(theirs: str, ours: str) -> None:
        if theirs in left:
            state[ours] = left.pop(theirs).squeeze(0)

    for theirs, ours in (_TOP | _IMAGE_BRANCH).items():
        move(theirs, ours)
    if f"{_IMAGE}pos_embed" in left:
        state["image.positions"] = left.pop(f"{_IMAGE}pos_embed")
    if "patch_embedding.weight" in left:
        state["patches.weight"] = left.pop("patch_embedding.weight").flatten(1)
    move("patch_embedding", "patches")
    move_table("scale_shift_table", "modulation")
    for index in range(config.num_layers):
        block = f"blocks.{index}."
        for theirs, ours in (_BLOCK | _BLOCK_NORMS).items():
            move(block + theirs, block + ours)
        move(f"{block}attn2.norm_added_k", f"{block}cross_attention.image_norm_k")
        for ours, parts in (_BLOCK_FUSED | _BLOCK_IMAGE_FUSED).items():
            fuse(tuple(block + part for part in parts), block + ours)
        move_table(f"{block}scale_shift_table", f"{block}modulation")
    return state | left


def build_transformer(
    config: WanConfig,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> WanTransformer:
    """A model ready to run from tensors with diffusers' names; `source` is named in errors."""
    with torch.device("meta"):
        model = WanTransformer(config)
    model = model.to(dtype).to_empty(device=device)
    load_strict(model, transformer_weights(tensors, config), source)
    return model.requires_grad_(False).eval()


def load_transformer(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> WanTransformer:
    """Read `config.json` and safetensors of a `transformer` folder; blocking.

    Raises START_FAILED for names that do not fit, UNSUPPORTED_FIELD or INVALID_VALUE for a model not built here.
    """
    config = WanConfig.from_hf(json.loads((folder / "config.json").read_text()))
    return build_transformer(config, read_tensors(folder, DIFFUSERS_STEM), str(folder), dtype=dtype, device=device)
