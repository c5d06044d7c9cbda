"""A decoder stack for the CPU: the weights of the plain modules, in as few calls as a layer can be.

A decode step reads each weight once; what else it does costs as much as the calls it is made of, since the weights have
swept everything else out of the cache. `modules.Decoder` is the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.engine.attention import Attention
from streamsynth.models.llama.linear import add_product, packed, product
from streamsynth.models.llama.modules import Decoder, Layer, RmsNorm, normalise


def lean(decoder: Decoder) -> LeanDecoder | None:
    """For a decoder on the CPU whose weights and tables are in place; None elsewhere."""
    return None if decoder.norm.weight.is_cuda else LeanDecoder(decoder)


@dataclass(frozen=True, slots=True)
class _Weights:
    """One linear's."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: nn.Linear) -> _Weights:
        return cls(packed(linear.weight), linear.bias)


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    eps: Tensor

    @classmethod
    def of(cls, norm: RmsNorm) -> _Norm:
        return cls(norm.weight, norm.eps_scalar)

    def __call__(self, x: Tensor) -> Tensor:
        return normalise(x, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: _Norm
    qkv: _Weights
    q_norm: _Norm | None
    k_norm: _Norm | None
    out: _Weights
    post_norm: _Norm
    gate_up: _Weights
    down: _Weights

    @classmethod
    def of(cls, layer: Layer) -> _Layer:
        own, feed_forward = layer.attention, layer.feed_forward
        return cls(
            input_norm=_Norm.of(layer.input_norm),
            qkv=_Weights.of(own.qkv),
            q_norm=None if own.q_norm is None else _Norm.of(own.q_norm),
            k_norm=None if own.k_norm is None else _Norm.of(own.k_norm),
            out=_Weights.of(own.out),
            post_norm=_Norm.of(layer.post_norm),
            gate_up=_Weights.of(feed_forward.gate_up),
            down=_Weights.of(feed_forward.down),
        )


class LeanDecoder:
    """Computes what `decoder` computes, whose weights and tables must be in place; they are shared, not copied."""

    def __init__(self, decoder: Decoder) -> None:
        config = decoder.config
        self._layers = [_Layer.of(layer) for layer in decoder.layers if isinstance(layer, Layer)]
        self._norm = _Norm.of(decoder.norm)
        self._cos = decoder.cos
        half = config.head_dim // 2
        self._sin = torch.cat((-decoder.sin[..., :half], decoder.sin[..., half:]), -1)
        self._halved = (-1, config.heads + config.kv_heads, 2, half)
        self._shape = (-1, config.heads + 2 * config.kv_heads, config.head_dim)
        self._sizes = (config.heads + config.kv_heads, config.kv_heads)
        self._turned_sizes = (config.heads, config.kv_heads)
        self._mixed = config.heads * config.head_dim
        self._halves = (config.intermediate_size, config.intermediate_size)

    def __call__(self, x: Tensor, attention: Attention) -> Tensor:
        """Embedded tokens (tokens, hidden), which are overwritten, to hidden states of the same shape."""
        cos, sin = self._cos.index_select(0, attention.positions), self._sin.index_select(0, attention.positions)
        for number, layer in enumerate(self._layers):
            mixed = self._attend(number, layer, layer.input_norm(x), cos, sin, attention)
            add_product(x, mixed, layer.out.weight, layer.out.bias)
            opened = product(layer.post_norm(x), layer.gate_up.weight, layer.gate_up.bias)
            gate, up = opened.split_with_sizes(self._halves, 1)
            add_product(x, F.silu(gate).mul_(up), layer.down.weight, layer.down.bias)
        return self._norm(x)

    def _attend(self, number: int, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        qkv = product(x, layer.qkv.weight, layer.qkv.bias).view(self._shape)
        turned, v = qkv.split_with_sizes(self._sizes, 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = turned.split_with_sizes(self._turned_sizes, 1)
            turned = torch.cat((layer.q_norm(q), layer.k_norm(k)), 1)
        swapped = turned.view(self._halved).flip(2).flatten(2)
        turned = (turned * cos).addcmul_(swapped, sin)
        q, k = turned.split_with_sizes(self._turned_sizes, 1)
        return attention.attend(number, q, k, v).reshape(-1, self._mixed)
