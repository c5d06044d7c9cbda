"""The Mimi codec in the two forms training needs: whole utterances to codes, and a fast differentiable decoder.

Both run the modules of transformers' `MimiModel` itself, time-major and without its per-layer device
synchronisation, so that a training step can be captured in a CUDA graph. They give what `MimiModel` itself gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import MimiModel
from transformers.models.mimi.modeling_mimi import (
    MimiConv1d,
    MimiConvTranspose1d,
    MimiResnetBlock,
    MimiTransformerModel,
    apply_rotary_pos_emb,
)

from train_tiny_speech.frames import FRAME_SAMPLES

_LENGTH_STEP = 50 * FRAME_SAMPLES
DECODER_PARTS = ("upsample", "decoder_transformer", "decoder")


def load_codec(folder: Path) -> MimiModel:
    return MimiModel.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def encode(codec: MimiModel, utterances: Sequence[NDArray[np.int16]]) -> list[NDArray[np.int16]]:
    """Codes [frames, codebooks] of each utterance; the encoder is causal, so padding to the longest changes nothing."""
    longest = max(map(len, utterances))
    padded = np.zeros((len(utterances), longest + -longest % _LENGTH_STEP), np.int16)
    for row, samples in zip(padded, utterances, strict=True):
        row[: len(samples)] = samples
    audio = torch.from_numpy(padded).to(codec.device).float() / 32768
    codes = encode_audio(codec, audio).permute(0, 2, 1).to(torch.int16).cpu().numpy()
    return [c[: len(u) // FRAME_SAMPLES] for c, u in zip(codes, utterances, strict=True)]


@torch.no_grad()
def encode_audio(codec: MimiModel, audio: Tensor) -> Tensor:
    """[batch, frames * 960] in -1 to 1 to codes [batch, codebooks, frames]; the layers run in bfloat16 on CUDA."""
    device = audio.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"), torch.backends.cudnn.flags(benchmark=False):
        x = audio[:, :, None]
        for layer in codec.encoder.layers:
            x = _layer(layer, x)
        x = _transformer(codec.encoder_transformer, x)
        x = torch.cat([x[:, :1], x[:, :1], x], 1)  # the one layer that pads with its first input
        x = F.conv1d(x.transpose(1, 2), codec.downsample.conv.weight, stride=codec.downsample.conv.stride)
    return codec.quantizer.encode(x.float()).transpose(0, 1)


@torch.no_grad()
def decode(codec: MimiModel, codes: NDArray[np.int16]) -> NDArray[np.float32]:
    """One utterance of codes [frames, codebooks] to samples."""
    batch = torch.from_numpy(codes.astype(np.int64)).T[None].to(codec.device)
    with torch.backends.cudnn.flags(benchmark=False):
        samples: NDArray[np.float32] = codec.decode(batch).audio_values[0, 0].float().cpu().numpy()
    return samples


class CodeEmbedding(nn.Module):
    """The frozen quantizer as one table: codes [..., codebooks] to the decoder's input [..., hidden]."""

    table: Tensor

    @torch.no_grad()
    def __init__(self, codec: MimiModel) -> None:
        super().__init__()
        rows = []
        quantizer = codec.quantizer
        for part in (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer):
            rows += [layer.codebook.embed @ part.output_proj.weight[:, :, 0].T for layer in part.layers]
        self.register_buffer("table", torch.stack(rows))

    def forward(self, codes: Tensor) -> Tensor:
        books = torch.arange(codes.shape[-1], device=codes.device)
        return self.table[books, codes].sum(-2)


def decode_embeddings(codec: MimiModel, embeddings: Tensor) -> Tensor:
    """[batch, frames, hidden] to samples [batch, frames * 960]; the last layer always runs in float32."""
    x = _overlap_add(embeddings[:, :, None] * codec.upsample.conv.weight[:, 0].T.view(1, 1, -1, embeddings.shape[-1]))
    x = _transformer(codec.decoder_transformer, x)
    *body, last = codec.decoder.layers
    for layer in body:
        x = _layer(layer, x)
    with torch.autocast(x.device.type, enabled=False):
        return _convolution(last, x.float())[..., 0]


def _transformer(model: MimiTransformerModel, x: Tensor) -> Tensor:
    positions = torch.arange(x.shape[1], device=x.device)
    distance = positions[:, None] - positions
    visible = (distance >= 0) & (distance < model.config.sliding_window)
    rotation = model.rotary_emb(x, positions[None])
    for layer in model.layers:
        attention = layer.self_attn
        heads = (attention.q_proj, attention.k_proj, attention.v_proj)
        normal = layer.input_layernorm(x)
        q, k, v = (project(normal).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for project in heads)
        q, k = apply_rotary_pos_emb(q, k, *rotation)
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=visible)
        x = x + layer.self_attn_layer_scale(attention.o_proj(mixed.transpose(1, 2).flatten(2)))
        x = x + layer.mlp_layer_scale(layer.mlp(layer.post_attention_layernorm(x)))
    return x


def _layer(layer: nn.Module, x: Tensor) -> Tensor:
    match layer:
        case MimiConv1d():
            return _convolution(layer, x)
        case MimiConvTranspose1d():
            return _transposed_convolution(layer, x)
        case MimiResnetBlock():
            residual = x
            for part in layer.block:
                x = _layer(part, x)
            return residual + x
        case _:
            return layer(x)


def _convolution(layer: MimiConv1d, x: Tensor) -> Tensor:
    """Causal, as a two-dimensional convolution: time-major data is then channels-last for it, with no copy."""
    conv = layer.conv
    (kernel,), (dilation,), (stride,) = conv.kernel_size, conv.dilation, conv.stride
    if kernel == 1:
        return F.linear(x, conv.weight[:, :, 0], conv.bias)
    image = F.pad(x, (0, 0, (kernel - 1) * dilation + 1 - stride, 0)).transpose(1, 2)[:, :, None]
    weight = conv.weight[:, :, None].contiguous(memory_format=torch.channels_last)
    return F.conv2d(image, weight, conv.bias, (1, stride), dilation=(1, dilation))[:, :, 0].transpose(1, 2)


def _transposed_convolution(layer: MimiConvTranspose1d, x: Tensor) -> Tensor:
    """Kernel of two strides, so each input step makes two strides of output: a product and an overlapped add."""
    conv = layer.conv
    weight = conv.weight.permute(2, 1, 0).flatten(0, 1)
    steps = F.linear(x, weight).unflatten(-1, (conv.kernel_size[0], conv.out_channels))
    return _overlap_add(steps) + conv.bias


def _overlap_add(steps: Tensor) -> Tensor:
    """[batch, time, 2 * stride, channels] to [batch, time * stride, channels]; the tail past the end is dropped."""
    now, later = steps.chunk(2, 2)
    return (now + F.pad(later, (0, 0, 0, 0, 1, 0))[:, :-1]).flatten(1, 2)
