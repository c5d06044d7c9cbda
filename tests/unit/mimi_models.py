"""Small random Mimi models of transformers, and the settings that they may have."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers import MimiConfig as HfConfig
from transformers import MimiModel

from streamsynth.models.mimi.config import MimiConfig

SMALL: dict[str, Any] = {
    "upsampling_ratios": [3, 2],
    "sampling_rate": 300,
    "hidden_size": 16,
    "num_filters": 4,
    "num_residual_layers": 2,
    "codebook_size": 16,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "num_quantizers": 4,
    "upsample_groups": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "sliding_window": 10,
    "max_position_embeddings": 16,
}


@st.composite
def settings_of_models(draw: st.DrawFn) -> dict[str, Any]:
    """Whatever `MimiConfig` can express and is built here, at sizes that run in milliseconds."""
    heads = draw(st.sampled_from([1, 2, 4]))
    ratios = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    quantizers = draw(st.integers(2, 5))
    inner = draw(st.sampled_from([4, 16]))
    steps = 1
    for ratio in ratios:
        steps *= ratio
    return {
        "upsampling_ratios": ratios,
        "sampling_rate": 50 * steps,
        "hidden_size": 16,
        "num_filters": draw(st.integers(2, 5)),
        "num_residual_layers": draw(st.integers(1, 3)),
        "kernel_size": draw(st.integers(1, 7)),
        "last_kernel_size": draw(st.integers(1, 5)),
        "residual_kernel_size": draw(st.integers(1, 4)),
        "dilation_growth_rate": draw(st.integers(1, 3)),
        "compress": draw(st.integers(1, 2)),
        "use_conv_shortcut": draw(st.booleans()),
        "pad_mode": draw(st.sampled_from(["constant", "replicate"])),
        "codebook_size": draw(st.sampled_from([4, 16])),
        "codebook_dim": inner,
        "vector_quantization_hidden_dimension": inner,
        "num_quantizers": quantizers,
        "num_semantic_quantizers": draw(st.integers(1, quantizers - 1)),
        "upsample_groups": draw(st.sampled_from([1, 2, 16])),
        "num_hidden_layers": draw(st.integers(1, 2)),
        "intermediate_size": draw(st.integers(1, 20)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([count for count in (1, 2, 4) if heads % count == 0])),
        "head_dim": draw(st.sampled_from([2, 8])),
        "hidden_act": draw(st.sampled_from(["gelu", "gelu_pytorch_tanh", "relu", "silu"])),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-2])),
        "rope_parameters": {"rope_type": "default", "rope_theta": draw(st.sampled_from([100.0, 10_000.0]))},
        "sliding_window": draw(st.integers(1, 12)),
        "attention_bias": draw(st.booleans()),
    }


def random_reference(settings: dict[str, Any], seed: int = 0) -> MimiModel:
    """A model whose every parameter matters, and whose loudest sample is at about full scale."""
    generator = torch.Generator().manual_seed(seed)
    model = MimiModel(HfConfig(**settings)).eval()
    for name, tensor in model.state_dict().items():
        tensor.copy_(_random(name, tensor.shape, generator))
    codes = random_codes(model, rows=1, frames=20)
    with torch.inference_mode():
        peak = model.decode(codes).audio_values.abs().max()
    last = model.decoder.layers[-1].conv
    with torch.no_grad():
        last.weight /= peak
        last.bias /= peak
    return model


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("cluster_usage"):
        return noise.abs() + 0.5
    if name.endswith(("scale", "layernorm.weight")):
        return 0.5 + 0.2 * noise
    if name.endswith(("bias", "embed_sum")) or len(shape) < 2:
        return 0.3 * noise if name.endswith("bias") else noise
    return noise * shape[1:].numel() ** -0.5


def config_of(model: MimiModel) -> MimiConfig:
    return MimiConfig.from_hf(model.config.to_dict())


def random_codes(model: MimiModel, *, rows: int, frames: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (rows, model.config.num_quantizers, frames)
    return torch.randint(0, model.config.codebook_size, size, generator=generator)


def pieces(whole: Tensor, lengths: list[int]) -> list[Tensor]:
    """Cut along the last dimension into `lengths`, again and again until it ends."""
    cut = []
    while whole.shape[-1]:
        length = lengths[len(cut) % len(lengths)]
        cut.append(whole[..., :length])
        whole = whole[..., length:]
    return cut
