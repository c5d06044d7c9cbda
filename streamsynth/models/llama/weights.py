"""From the Hugging Face names of a Llama-layout decoder to ours: fused projections, nothing else changed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from streamsynth.errors import ErrorCode, StreamSynthError

_PLAIN = {
    "input_layernorm.weight": "input_norm.weight",
    "post_attention_layernorm.weight": "post_norm.weight",
    "self_attn.o_proj.weight": "attention.out.weight",
    "self_attn.o_proj.bias": "attention.out.bias",
    "self_attn.q_norm.weight": "attention.q_norm.weight",
    "self_attn.k_norm.weight": "attention.k_norm.weight",
    "mlp.down_proj.weight": "feed_forward.down.weight",
    "mlp.down_proj.bias": "feed_forward.down.bias",
}
_FUSED = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "feed_forward.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}


def decoder_weights(tensors: Mapping[str, Tensor], prefix: str, layers: int) -> dict[str, Tensor]:
    """The state dict of `Decoder` from tensors named `prefix` + "layers.0.self_attn.q_proj.weight" and so on."""
    state = {"norm.weight": tensors[f"{prefix}norm.weight"]}
    for index in range(layers):
        source, target = f"{prefix}layers.{index}.", f"layers.{index}."
        for theirs, ours in _PLAIN.items():
            if source + theirs in tensors:
                state[target + ours] = tensors[source + theirs]
        for ours, parts in _FUSED.items():
            for kind in ("weight", "bias"):
                found = [tensors[f"{source}{part}.{kind}"] for part in parts if f"{source}{part}.{kind}" in tensors]
                if found:
                    state[f"{target}{ours}.{kind}"] = torch.cat(found)
    return state


def load_strict(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load every parameter of `module`, or raise START_FAILED naming what is missing or left over."""
    result = module.load_state_dict(dict(state), strict=False)
    if result.missing_keys or result.unexpected_keys:
        parts = [f"missing {', '.join(result.missing_keys[:5])}"] * bool(result.missing_keys)
        parts += [f"unknown {', '.join(result.unexpected_keys[:5])}"] * bool(result.unexpected_keys)
        raise StreamSynthError(ErrorCode.START_FAILED, f"{source}: {'; '.join(parts)}")
