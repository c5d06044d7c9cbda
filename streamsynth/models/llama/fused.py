"""A decoder stack through the kernels: five launches a layer, with the weights of the plain modules.

Imported on CUDA alone. `models.llama.modules.Decoder` is the oracle.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from streamsynth.engine.attention import Attention
from streamsynth.engine.kernels.product import Normed, Products, Turn
from streamsynth.models.llama.modules import Decoder, Layer, RmsNorm


def can_fuse(decoder: Decoder) -> bool:
    """Biases, and norms of queries and keys, have no kernel; rows of matrices have to begin on 16 bytes."""
    config = decoder.config
    widths = (config.hidden_size, config.intermediate_size, config.heads * config.head_dim)
    aligned = all(width * decoder.norm.weight.element_size() % 16 == 0 for width in widths)
    return aligned and not (config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm)


class FusedDecoder:
    """Computes what `decoder` computes; the last norm is done by the product that follows."""

    def __init__(self, decoder: Decoder, products: Products) -> None:
        if not can_fuse(decoder):
            raise ValueError(
                "a decoder with biases, norms of queries and keys, or rows of no multiple of 16 bytes, cannot be fused"
            )
        self._decoder = decoder
        self._products = products
        self._config = decoder.config
        self._layers = [cast(Layer, layer) for layer in decoder.layers]
        self._norms = [layer.input_norm for layer in self._layers] + [decoder.norm]

    @property
    def first_norm(self) -> RmsNorm:
        return self._norms[0]

    @property
    def last_norm(self) -> RmsNorm:
        return self._norms[-1]

    def __call__(self, x: Tensor | Normed, attention: Attention) -> Normed:
        """Embedded tokens (tokens, hidden), contiguous; they are overwritten by the hidden states.

        Who has begun the first norm already passes it as a `Normed`.
        """
        config, decoder = self._config, self._decoder
        turn = Turn(attention.positions, decoder.cos, decoder.sin, config.heads + config.kv_heads, config.head_dim)
        state = x if isinstance(x, Normed) else self._products.norm(x, self.first_norm.weight, self.first_norm.eps)
        for layer, following in zip(self._layers, self._norms[1:], strict=True):
            state = self._layer(layer, state, turn, attention, following)
        return state

    def _layer(self, layer: Layer, state: Normed, turn: Turn, attention: Attention, following: RmsNorm) -> Normed:
        config, products, x = self._config, self._products, state.x
        own, feed_forward, norm = layer.attention, layer.feed_forward, layer.post_norm
        heads = products.turned(state, own.qkv.weight, turn).view(len(x), -1, config.head_dim)
        q, k, v = heads.split((config.heads, config.kv_heads, config.kv_heads), 1)
        mixed = attention.attend(own.layer, q, k, v).view(len(x), -1)
        state = products.add(mixed, own.out.weight, x, norm.weight, norm.eps)
        gated = products.gated(state, feed_forward.gate_up.weight)
        return products.add(gated, feed_forward.down.weight, x, following.weight, following.eps)
