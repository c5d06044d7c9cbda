"""The UMT5 encoder, which reads prompts; follows transformers' `UMT5EncoderModel`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.errors import invalid_value
from streamsynth.models.embedding import loaded_embedding
from streamsynth.models.wan.settings import at_least_one

_FIXED = {"feed_forward_proj": "gated-gelu"}
_AT_LEAST_ONE = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_num_buckets")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextEncoderConfig:
    """Field names are those of transformers' `UMT5Config`; defaults are UMT5-XXL's, which Wan reads prompts with."""

    vocab_size: int = 256_384
    d_model: int = 4096
    d_kv: int = 64
    d_ff: int = 10_240
    num_layers: int = 24
    num_heads: int = 64
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> TextEncoderConfig:
        """Reads what the encoder's arithmetic depends on; raises INVALID_VALUE for a value not built here."""
        for name, only in _FIXED.items():
            if config.get(name, only) != only:
                raise invalid_value(name, config[name], repr(only))
        return cls(**{field.name: config[field.name] for field in fields(cls) if field.name in config})

    def __post_init__(self) -> None:
        at_least_one(self, _AT_LEAST_ONE)
        buckets = self.relative_attention_num_buckets
        if buckets % 4:
            raise invalid_value("relative_attention_num_buckets", buckets, "a multiple of 4")
        if self.relative_attention_max_distance <= buckets // 4:
            limit = f"above {buckets // 4}, the distances with a bucket of their own"
            raise invalid_value("relative_attention_max_distance", self.relative_attention_max_distance, limit)


class ScaleNorm(nn.Module):
    """RMS norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class EncoderLayer(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        size, inner = config.d_model, config.num_heads * config.d_kv
        self.heads = config.num_heads
        self.attention_norm = ScaleNorm(size, config.layer_norm_epsilon)
        self.qkv, self.out = nn.Linear(size, 3 * inner, bias=False), nn.Linear(inner, size, bias=False)
        self.distance = loaded_embedding(config.relative_attention_num_buckets, config.num_heads)
        self.forward_norm = ScaleNorm(size, config.layer_norm_epsilon)
        self.gate_up, self.down = nn.Linear(size, 2 * config.d_ff, bias=False), nn.Linear(config.d_ff, size, bias=False)

    def forward(self, x: Tensor, buckets: Tensor, hidden: Tensor) -> Tensor:
        """x (rows, tokens, d_model); buckets (tokens, tokens) of distances; `hidden` (rows, 1, 1, tokens) is -inf where
        nothing is to be seen, else 0."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, -1)
        )
        bias = self.distance(buckets).permute(2, 0, 1) + hidden
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.forward_norm(x)).chunk(2, -1)
        return x + self.down(F.gelu(gate, approximate="tanh") * up)


class TextEncoder(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = loaded_embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.norm = ScaleNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """tokens (rows, length) int64, of which each row's first `lengths` (rows,) count, to (rows, length, d_model).

        What lies beyond a row's length is zeros.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        seen = places < lengths[:, None]
        x = self.embedding(tokens)
        # The first place is always to be seen: attention to nothing would not be a number.
        hidden = torch.zeros_like(seen, dtype=x.dtype).masked_fill_(~seen & (places > 0), -math.inf)[:, None, None]
        buckets = self._buckets(places[None] - places[:, None])
        for layer in self.layers:
            x = layer(x, buckets, hidden)
        return self.norm(x) * seen[..., None]

    def _buckets(self, distance: Tensor) -> Tensor:
        """Half the buckets look back and half ahead; of each half, one half are single distances and the others grow
        with the logarithm up to the largest."""
        each = self.config.relative_attention_num_buckets // 2
        single = each // 2
        far = distance.abs()
        growth = math.log(self.config.relative_attention_max_distance / single)
        grown = single + (torch.log(far.clamp_min(1).float() / single) / growth * (each - single)).long()
        return torch.where(far < single, far, grown.clamp_max(each - 1)) + each * (distance > 0)
