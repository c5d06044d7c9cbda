"""The transformer with few kernels, for captured passes on CUDA; `WanTransformer` is the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from streamsynth.engine.kernels.tokens import add_and_norm, norm_parts, turn_pairs
from streamsynth.models.wan.attention import SelfAttention
from streamsynth.models.wan.model import PromptContext, WanTransformer
from streamsynth.models.wan.modules import FeedForward
from streamsynth.models.wan.rotary import Rotary


class KernelRotary(Rotary):
    """A `Rotary` whose turn is one kernel."""

    def turn(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self.turn_into(x, out)
        return out

    def turn_into(self, x: Tensor, out: Tensor) -> None:
        turn_pairs(x, self.turns, out)


class FusedTransformer:
    """The same weights. What a time step says to the layers stays in float32, where the plain one rounds it."""

    def __init__(self, model: WanTransformer) -> None:
        blocks = model.each_block()
        self._model = model
        self._modulation = torch.stack([block.modulation.detach().float() for block in blocks])
        self._norms = [
            torch.stack((block.self_attention.norm_q.weight, block.self_attention.norm_k.weight)).detach()
            for block in blocks
        ]

    def rotary(self, positions: Tensor, height: int, width: int) -> KernelRotary:
        return KernelRotary(self._model.rotary(positions, height, width).turns)

    def __call__(
        self, latents: Tensor, timesteps: Tensor, prompt: PromptContext, rotary: Rotary, attention: SelfAttention
    ) -> Tensor:
        """As `WanTransformer.forward`."""
        model, eps = self._model, self._model.config.eps
        heads = model.config.num_attention_heads
        patches = model.patches(model.in_patches(latents))
        frames, x = patches.shape[1], patches.flatten(1, 2)
        to_head, to_layers = model.time(timesteps)
        # (layers, groups of tokens that share a time step, 6, size), and 2 for the head.
        steps = (self._modulation[:, None] + to_layers.float().flatten(0, 1)).unbind()
        head_shift, head_scale = (model.modulation + to_head.float().flatten(0, 1)[:, None]).unbind(1)

        blocks = model.each_block()
        y = add_and_norm(x, None, None, steps[0][:, 1], steps[0][:, 0], eps=eps, modulated=True)
        for index, (block, context) in enumerate(zip(blocks, prompt.layers, strict=True)):
            _, _, gate, forward_shift, forward_scale, forward_gate = steps[index].unbind(1)
            attends = block.self_attention
            qkv = attends.qkv(y)
            q, k = norm_parts(qkv, self._norms[index], eps).unflatten(-1, (heads, -1))
            v = qkv.chunk(3, -1)[2].unflatten(-1, (heads, -1))
            attended = attends.out(attention.attend(attends.layer, q, k, v, rotary).flatten(2))
            norm = block.cross_norm
            y = add_and_norm(x, attended, gate, norm.weight, norm.bias, eps=eps, modulated=False)
            crossed = block.cross_attention(y, context)
            y = add_and_norm(x, crossed, None, forward_scale, forward_shift, eps=eps, modulated=True)
            last = index + 1 == len(blocks)
            scale, shift = (head_scale, head_shift) if last else (steps[index + 1][:, 1], steps[index + 1][:, 0])
            change = _feed_forward(block.feed_forward, y)
            y = add_and_norm(x, change, forward_gate, scale, shift, eps=eps, modulated=True)
        return model.in_pixels(model.head(y).unflatten(1, (frames, -1)), *latents.shape[3:])


def _feed_forward(block: FeedForward, y: Tensor) -> Tensor:
    """The product and its activation are one kernel on CUDA, with the approximation by tanh."""
    up = torch._addmm_activation(block.up.bias, y.flatten(0, 1), block.up.weight.t(), use_gelu=True)
    return block.down(up).unflatten(0, y.shape[:2])
