"""The talker on disk, as published: float16, no codec, the tied audio embeddings stored once."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CsmConfig, CsmForConditionalGeneration


def load_talker(folder: Path) -> CsmForConditionalGeneration:
    """float32, with the audio embeddings of backbone and depth decoder tied, and no codec inside."""
    talker = new_talker(CsmConfig.from_pretrained(folder))
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    missing, unexpected = talker.load_state_dict(weights, strict=False)
    tied = {"backbone_model.embed_tokens.embed_audio_tokens.weight"}
    if unexpected or set(missing) - tied:
        raise ValueError(f"{folder} is no talker: missing {missing}, unexpected {unexpected}")
    return talker.eval()


def new_talker(config: CsmConfig) -> CsmForConditionalGeneration:
    talker = CsmForConditionalGeneration(config).float()
    talker.codec_model = nn.Identity()
    talker.backbone_model.embed_tokens.embed_audio_tokens.weight = talker.depth_decoder.model.embed_tokens.weight
    return talker


def save_talker(talker: CsmForConditionalGeneration, folder: Path) -> None:
    """float16, without what is tied."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().to(torch.float16).cpu().contiguous() for name, value in talker.state_dict().items()}
    weights.pop("backbone_model.embed_tokens.embed_audio_tokens.weight", None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    talker.config.save_pretrained(folder)
