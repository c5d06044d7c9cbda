"""From the Hugging Face names of `CsmForConditionalGeneration` to ours."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from streamsynth.models.csm.config import CsmConfig
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.llama.linear import input_major, order_weights
from streamsynth.models.llama.weights import decoder_weights, load_strict, read_tensors


def talker_weights(tensors: dict[str, Tensor], config: CsmConfig) -> dict[str, Tensor]:
    """The state dict of `CsmTalker`. The audio embeddings are stored once, under either of their two names."""
    names = ("depth_decoder.model.embed_tokens.weight", "backbone_model.embed_tokens.embed_audio_tokens.weight")
    codes = next(tensors[name] for name in names if name in tensors)
    state = {
        "text_embedding.weight": tensors["embed_text_tokens.weight"],
        "code_embedding.weight": codes,
        "first_head.weight": tensors["lm_head.weight"],
        "projector.weight": tensors["depth_decoder.model.inputs_embeds_projector.weight"],
        "heads": tensors["depth_decoder.codebooks_head.weight"].transpose(1, 2).contiguous(),
    }
    for ours, theirs, layers in (
        ("backbone.", "backbone_model.", config.backbone.layers),
        ("depth.", "depth_decoder.model.", config.depth.layers),
    ):
        state |= {ours + name: tensor for name, tensor in decoder_weights(tensors, theirs, layers).items()}
    return state


def load_talker(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> CsmTalker:
    """Read `config.json` and safetensors; blocking. Raises START_FAILED for names that do not fit."""
    config = CsmConfig.from_hf(json.loads((folder / "config.json").read_text()))
    return build_talker(config, read_tensors(folder), str(folder), dtype=dtype, device=device)


def build_talker(
    config: CsmConfig,
    tensors: dict[str, Tensor],
    source: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> CsmTalker:
    """A talker ready to run from tensors with the Hugging Face names; `source` is named in errors."""
    # Not by way of the meta device: that imports torch's compiler, which takes a second.
    with torch.device(device):
        talker = CsmTalker(config).to(dtype)
    load_strict(talker, talker_weights(tensors, config), source)
    talker.requires_grad_(False).eval()
    order_weights(talker)
    talker.heads.data = input_major(talker.heads.data)
    talker.fill_tables()
    return talker
