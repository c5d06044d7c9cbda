"""The transformer on either side of the codes: causal attention over a sliding window, with rotary positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.models.mimi.activations import ACTIVATIONS
from streamsynth.models.mimi.config import MimiConfig
from streamsynth.models.mimi.ring import AttentionShape, AttentionStep
from streamsynth.models.mimi.weights import Tensors, frozen


class TransformerLayer(nn.Module):
    """Pre-norm attention and feed-forward; layer scale is folded into the output projections."""

    def __init__(self, config: MimiConfig, index: int, tensors: Tensors, name: str) -> None:
        super().__init__()
        self.index = index
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.eps = config.norm_eps
        self.activation = ACTIVATIONS[config.hidden_act]
        scale, mlp_scale = tensors[f"{name}.self_attn_layer_scale.scale"], tensors[f"{name}.mlp_layer_scale.scale"]
        projections = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        self.qkv = frozen(torch.cat([tensors[f"{part}.weight"] for part in projections]).t())
        self.out = frozen(tensors[f"{name}.self_attn.o_proj.weight"].t() * scale)
        self.qkv_bias: nn.Parameter | None = None
        self.out_bias: nn.Parameter | None = None
        if config.attention_bias:
            self.qkv_bias = frozen(torch.cat([tensors[f"{part}.bias"] for part in projections]))
            self.out_bias = frozen(tensors[f"{name}.self_attn.o_proj.bias"] * scale)
        self.norm, self.norm_bias = (frozen(tensors[f"{name}.input_layernorm.{part}"]) for part in ("weight", "bias"))
        self.mlp_norm, self.mlp_norm_bias = (
            frozen(tensors[f"{name}.post_attention_layernorm.{part}"]) for part in ("weight", "bias")
        )
        self.up = frozen(tensors[f"{name}.mlp.fc1.weight"].t())
        self.down = frozen(tensors[f"{name}.mlp.fc2.weight"].t() * mlp_scale)

    def forward(self, x: Tensor, step: AttentionStep) -> Tensor:
        """x (rows * time, channels), changed in place."""
        normed = F.layer_norm(x, x.shape[-1:], self.norm, self.norm_bias, self.eps)
        qkv = torch.mm(normed, self.qkv) if self.qkv_bias is None else torch.addmm(self.qkv_bias, normed, self.qkv)
        attended = self._attend(qkv, step)
        if self.out_bias is not None:
            x.add_(self.out_bias)
        x.addmm_(attended, self.out)
        normed = F.layer_norm(x, x.shape[-1:], self.mlp_norm, self.mlp_norm_bias, self.eps)
        return x.addmm_(self.activation(torch.mm(normed, self.up)), self.down)

    def _attend(self, qkv: Tensor, step: AttentionStep) -> Tensor:
        rows, time = step.at[1].shape
        heads = qkv.view(rows, time, self.heads + 2 * self.kv_heads, self.head_dim)
        step.rotate_(heads[:, :, : self.heads + self.kv_heads])
        keys, values = step.remember(self.index, heads[:, :, self.heads :])
        attended = F.scaled_dot_product_attention(
            heads[:, :, : self.heads].transpose(1, 2),
            keys,
            values,
            attn_mask=step.mask,
            enable_gqa=self.heads != self.kv_heads,
        )
        return attended.transpose(1, 2).reshape(rows * time, self.heads * self.head_dim)


class Transformer(nn.Module):
    def __init__(self, config: MimiConfig, tensors: Tensors, name: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(config, index, tensors, f"{name}.layers.{index}")
            for index in range(config.num_hidden_layers)
        )

    def forward(self, x: Tensor, step: AttentionStep) -> Tensor:
        """x (rows, time, channels), changed in place."""
        flat = x.flatten(0, 1)
        for layer in self.layers:
            layer(flat, step)
        return x


def attention_shape(config: MimiConfig, device: torch.device) -> AttentionShape:
    """Rotary frequencies are float32 as transformers rounds them, kept in float64."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = (1.0 / config.rope_theta**exponents).double()
    return AttentionShape(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        window=config.sliding_window,
        signed_frequencies=torch.cat([-frequencies, frequencies]).to(device),
    )
