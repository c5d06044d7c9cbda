"""The decoder stack. It knows nothing of pages: attention is a call on the context that the runner passes in.

Tokens of all rows lie side by side in one (tokens, hidden) matrix, whichever row or phase they belong to.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.engine.attention import Attention
from streamsynth.models.llama.config import DecoderConfig, RopeScaling


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.eps_scalar = torch.tensor(eps, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return normalise(x, self.weight, self.eps_scalar)


def normalise(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Divide by the root of the mean square over the last dimension: on the CPU, where torch has no kernel for this.

    Written out like this it takes the fewest operations. `eps` is a scalar tensor.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.addcmul(eps, length, length, value=1.0 / x.shape[-1]).rsqrt_()
    normed = (x * scale).mul_(weight)
    return normed if normed.dtype is x.dtype else normed.to(x.dtype)


def rotary_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Angles a position advances by: float32 (head_dim / 2,)."""
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return frequency
    wavelength = 2 * math.pi / frequency
    low = scaling.original_max_position_embeddings / scaling.low_freq_factor
    high = scaling.original_max_position_embeddings / scaling.high_freq_factor
    blend = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = (1 - blend) * frequency / scaling.factor + blend * frequency
    stretched = torch.where(wavelength > low, frequency / scaling.factor, frequency)
    return torch.where((wavelength <= low) & (wavelength >= high), smooth, stretched)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves layout. x (tokens, heads, head_dim); cos and sin (tokens, 1, head_dim)."""
    half = x.shape[-1] // 2
    crossed = x.roll(half, -1)
    crossed[..., :half].neg_()
    return (x * cos).addcmul_(crossed, sin)


class SelfAttention(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv = nn.Linear(config.hidden_size, rows, bias=config.qkv_bias)
        self.out = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=config.output_bias)
        self.q_norm = RmsNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RmsNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        tokens = x.shape[0]
        qkv = self.qkv(x).view(tokens, -1, self.head_dim)
        turned, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = turned.split((self.heads, self.kv_heads), dim=1)
            turned = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        q, k = rotate(turned, cos, sin).split((self.heads, self.kv_heads), dim=1)
        return self.out(attention.attend(self.layer, q, k, v).reshape(tokens, -1))


class FeedForward(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class Layer(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = SelfAttention(config, layer)
        self.post_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        x = x + self.attention(self.input_norm(x), cos, sin, attention)
        return x + self.feed_forward(self.post_norm(x))


class Decoder(nn.Module):
    """Embedded tokens in, hidden states out: (tokens, hidden) both."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.register_buffer("cos", torch.empty(0), persistent=False)
        self.register_buffer("sin", torch.empty(0), persistent=False)

    def fill_tables(self) -> None:
        """Compute what no checkpoint stores, in the weights' dtype and place; call once they are loaded."""
        config, like = self.config, self.norm.weight
        frequency = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        angle = torch.arange(config.max_position_embeddings)[:, None] * frequency
        angle = torch.cat((angle, angle), -1)[:, None]
        self.cos, self.sin = angle.cos().to(like), angle.sin().to(like)

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        cos, sin = self.cos[attention.positions], self.sin[attention.positions]
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        return self.norm(x)
