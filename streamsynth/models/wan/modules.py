"""The transformer's blocks. A token is a patch of one latent frame; what changes with the time step is per frame."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.models.wan.attention import SelfAttention, scaled_dot_product
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.rotary import Rotary


class AcrossHeadsNorm(nn.Module):
    """RMS norm over all heads of a query or key together."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class LayerContext:
    """What one layer's cross attention reads: keys and values (rows, tokens, heads, head_dim)."""

    keys: Tensor
    values: Tensor
    image_keys: Tensor | None
    image_values: Tensor | None


class SelfAttentionBlock(nn.Module):
    def __init__(self, config: WanConfig, layer: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.layer, self.heads = layer, config.num_attention_heads
        self.qkv = nn.Linear(size, 3 * size)
        self.norm_q, self.norm_k = AcrossHeadsNorm(size, config.eps), AcrossHeadsNorm(size, config.eps)
        self.out = nn.Linear(size, size)

    def forward(self, x: Tensor, rotary: Rotary, attention: SelfAttention) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in (self.norm_q(q), self.norm_k(k), v))
        return self.out(attention.attend(self.layer, q, k, v, rotary).flatten(2))


class CrossAttentionBlock(nn.Module):
    """Queries are the picture's; keys and values are made once a prompt, by `context`."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.q, self.kv, self.out = nn.Linear(size, size), nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.norm_q, self.norm_k = AcrossHeadsNorm(size, config.eps), AcrossHeadsNorm(size, config.eps)
        self.image_kv, self.image_norm_k = None, None
        if config.image_dim is not None:
            self.image_kv, self.image_norm_k = nn.Linear(size, 2 * size), AcrossHeadsNorm(size, config.eps)

    def context(self, text: Tensor, image: Tensor | None) -> LayerContext:
        """From embedded text and image tokens, (rows, tokens, hidden)."""
        keys, values = self._split(self.kv(text), self.norm_k)
        if image is None or self.image_kv is None or self.image_norm_k is None:
            return LayerContext(keys, values, None, None)
        return LayerContext(keys, values, *self._split(self.image_kv(image), self.image_norm_k))

    def _split(self, kv: Tensor, norm: AcrossHeadsNorm) -> tuple[Tensor, Tensor]:
        k, v = kv.chunk(2, -1)
        return norm(k).unflatten(-1, (self.heads, -1)), v.unflatten(-1, (self.heads, -1))

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        q = self.norm_q(self.q(x)).unflatten(-1, (self.heads, -1))
        out = scaled_dot_product(q, context.keys, context.values)
        if context.image_keys is not None and context.image_values is not None:
            out = out + scaled_dot_product(q, context.image_keys, context.image_values)
        return self.out(out.flatten(2))


class FeedForward(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(size, inner), nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


def modulated(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Layer norm of x (rows, frames, patches, hidden), then scaled by 1 + `scale` and shifted; both for each frame."""
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=eps), 1 + scale)


class Block(nn.Module):
    """`steps` (rows, frames or 1, 6, hidden) float32 is what the time step says to this layer."""

    def __init__(self, config: WanConfig, layer: int) -> None:
        super().__init__()
        size, self.eps = config.hidden_size, config.eps
        self.self_attention = SelfAttentionBlock(config, layer)
        self.cross_norm = nn.LayerNorm(size, config.eps)
        self.cross_attention = CrossAttentionBlock(config)
        self.feed_forward = FeedForward(size, config.ffn_dim)
        self.modulation = nn.Parameter(torch.zeros(6, size))

    def forward(
        self, x: Tensor, steps: Tensor, context: LayerContext, rotary: Rotary, attention: SelfAttention
    ) -> Tensor:
        """x (rows, frames, patches, hidden)."""
        frames = x.shape[1:3]
        parts = (self.modulation + steps).to(x.dtype).unsqueeze(3).unbind(2)
        shift, scale, gate, forward_shift, forward_scale, forward_gate = parts
        attended = self.self_attention(modulated(x, scale, shift, self.eps).flatten(1, 2), rotary, attention)
        x = torch.addcmul(x, attended.unflatten(1, frames), gate)
        x = x + self.cross_attention(self.cross_norm(x).flatten(1, 2), context).unflatten(1, frames)
        return torch.addcmul(x, self.feed_forward(modulated(x, forward_scale, forward_shift, self.eps)), forward_gate)
