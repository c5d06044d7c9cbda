"""Talkers that say nothing: random weights at any size, for tests of equality and for benches of speed."""

from __future__ import annotations

import torch

from streamsynth.models.csm.config import CsmConfig
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.llama.config import DecoderConfig, RopeScaling

CSM_1B = CsmConfig(
    backbone=DecoderConfig(
        hidden_size=2048,
        layers=16,
        heads=32,
        kv_heads=8,
        head_dim=64,
        intermediate_size=8192,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(
            factor=32.0, low_freq_factor=0.125, high_freq_factor=0.5, original_max_position_embeddings=1024
        ),
        max_position_embeddings=2048,
    ),
    depth=DecoderConfig(
        hidden_size=1024,
        layers=4,
        heads=8,
        kv_heads=2,
        head_dim=128,
        intermediate_size=8192,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(
            factor=32.0, low_freq_factor=0.001953125, high_freq_factor=0.0078125, original_max_position_embeddings=16
        ),
        max_position_embeddings=33,
    ),
    codebooks=32,
    vocab_size=2051,
    text_vocab_size=128_256,
    eos_code=0,
    audio_token=128_002,
    audio_eos_token=128_003,
)
"""The sizes of Sesame's CSM-1B (transformers `CsmConfig()`)."""


@torch.inference_mode()
def random_talker(
    config: CsmConfig,
    *,
    seed: int = 0,
    head_gain: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> CsmTalker:
    """Weights whose activations keep their scale through the layers.

    With a large `head_gain` the best token of a draw leads by far more than rounding.
    """
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device("meta"):
        talker = CsmTalker(config)
    talker = talker.to_empty(device=device).to(dtype).requires_grad_(False).eval()
    for name, weight in talker.named_parameters():
        if weight.dim() == 1:
            weight.fill_(1.0)
            continue
        gain = head_gain if "head" in name else 1.0
        if "embedding" in name:
            weight.normal_(0.0, 1.0, generator=generator)
        else:
            weight.normal_(0.0, gain * weight.shape[-1] ** -0.5, generator=generator)
    talker.fill_tables()
    return talker
