"""A decoder stack through the kernels: five launches a layer, with the weights of the plain modules.

Imported on CUDA alone. `models.llama.modules.Decoder` is the oracle.
"""

from __future__ import annotations

from torch import Tensor

from streamsynth.engine.kernels.product import Form, Products, Turn
from streamsynth.models.llama.modules import Attention, Decoder, Layer


def can_fuse(decoder: Decoder) -> bool:
    """Biases and norms of queries and keys have no kernel."""
    config = decoder.config
    return not (config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm)


class FusedDecoder:
    """Computes what `decoder` computes up to its last norm, which is left to the product that follows."""

    def __init__(self, decoder: Decoder, products: Products) -> None:
        if not can_fuse(decoder):
            raise ValueError("a decoder with biases or with norms of queries and keys cannot be fused")
        self._decoder = decoder
        self._products = products
        self._config = decoder.config

    def __call__(self, x: Tensor, attention: Attention) -> Tensor:
        """Embedded tokens (tokens, hidden), contiguous, are overwritten by the hidden states that are returned."""
        config, decoder = self._config, self._decoder
        turn = Turn(attention.positions, decoder.cos, decoder.sin, config.heads + config.kv_heads, config.head_dim)
        for layer in decoder.layers:
            assert isinstance(layer, Layer)
            self._layer(layer, x, turn, attention)
        return x

    def normed_product(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """The product of a weight with the decoder's last norm of x."""
        norm = self._decoder.norm
        return self._products(x, weight, norm=norm.weight, eps=norm.eps, out=out)

    def _layer(self, layer: Layer, x: Tensor, turn: Turn, attention: Attention) -> None:
        config, product = self._config, self._products
        own, feed_forward = layer.attention, layer.feed_forward
        norm = layer.input_norm
        qkv = product(x, own.qkv.weight, form=Form.ROTARY, norm=norm.weight, eps=norm.eps, turn=turn)
        heads = qkv.view(len(x), -1, config.head_dim)
        q, k, v = heads.split((config.heads, config.kv_heads, config.kv_heads), 1)
        mixed = attention.attend(own.layer, q, k, v).view(len(x), -1)
        product(mixed, own.out.weight, form=Form.RESIDUAL, residual=x, out=x)
        norm = layer.post_norm
        gated = product(x, feed_forward.gate_up.weight, form=Form.GATED, norm=norm.weight, eps=norm.eps)
        product(gated, feed_forward.down.weight, form=Form.RESIDUAL, residual=x, out=x)
