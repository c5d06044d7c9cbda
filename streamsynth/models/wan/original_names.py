"""From the names in Wan's own releases, and in files trained from them such as Self-Forcing's, to those of diffusers.

Each function takes a name and gives the other; a name that it does not know it leaves as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum

from torch import Tensor

from streamsynth.errors import ErrorCode, StreamSynthError


class Part(StrEnum):
    """What a file holds the weights of."""

    TRANSFORMER = "transformer"
    VAE = "vae"
    TEXT_ENCODER = "text_encoder"
    TINY_VAE = "tiny_vae"


_TELLING = {
    Part.TRANSFORMER: "blocks.0.self_attn.q.weight",
    Part.VAE: "decoder.middle.0.residual.0.gamma",
    Part.TEXT_ENCODER: "blocks.0.attn.q.weight",
    Part.TINY_VAE: "decoder.3.conv.0.weight",
}
"""A name that only files of that kind have."""


def part_of(tensors: Mapping[str, Tensor], source: str) -> Part:
    """Raises START_FAILED for names that no release has."""
    for part, name in _TELLING.items():
        if name in tensors:
            return part
    shown = ", ".join(sorted(tensors)[:3]) or "nothing"
    message = f"{source}: no names of Wan's transformer, autoencoders or text encoder, but {shown}"
    raise StreamSynthError(ErrorCode.START_FAILED, message)


_CONDITION = "condition_embedder."
_TRANSFORMER = {
    "text_embedding.0": f"{_CONDITION}text_embedder.linear_1",
    "text_embedding.2": f"{_CONDITION}text_embedder.linear_2",
    "time_embedding.0": f"{_CONDITION}time_embedder.linear_1",
    "time_embedding.2": f"{_CONDITION}time_embedder.linear_2",
    "time_projection.1": f"{_CONDITION}time_proj",
    "img_emb.proj.0": f"{_CONDITION}image_embedder.norm1",
    "img_emb.proj.1": f"{_CONDITION}image_embedder.ff.net.0.proj",
    "img_emb.proj.3": f"{_CONDITION}image_embedder.ff.net.2",
    "img_emb.proj.4": f"{_CONDITION}image_embedder.norm2",
    "head.head": "proj_out",
}
_BLOCK = {
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    # The one norm of a block that has weights is third there, and counted where it is used here.
    "norm3": "norm2",
}
_ATTENTION = {
    "q": "to_q",
    "k": "to_k",
    "v": "to_v",
    "o": "to_out.0",
    "norm_q": "norm_q",
    "norm_k": "norm_k",
    "k_img": "add_k_proj",
    "v_img": "add_v_proj",
    "norm_k_img": "norm_added_k",
}
_WHOLE = {"head.modulation": "scale_shift_table", "img_emb.emb_pos": f"{_CONDITION}image_embedder.pos_embed"}
_IN_BLOCK = re.compile(r"(blocks\.\d+)\.(.+)")
_IN_ATTENTION = re.compile(r"(self|cross)_attn\.(\w+)")


def transformer_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    stem, _, kind = name.rpartition(".")
    block = _IN_BLOCK.fullmatch(name)
    if block is None:
        return f"{_TRANSFORMER.get(stem, stem)}.{kind}" if stem else name
    if block[2] == "modulation":
        return f"{block[1]}.scale_shift_table"
    inner = block[2].rpartition(".")[0]
    attention = _IN_ATTENTION.fullmatch(inner)
    if attention is not None and attention[2] in _ATTENTION:
        return f"{block[1]}.attn{1 if attention[1] == 'self' else 2}.{_ATTENTION[attention[2]]}.{kind}"
    return f"{block[1]}.{_BLOCK.get(inner, inner)}.{kind}"


_RESIDUAL = {"residual.0": "norm1", "residual.2": "conv1", "residual.3": "norm2", "residual.6": "conv2"}
_RESIDUAL["shortcut"] = "conv_shortcut"
_MIDDLE = {"0": "resnets.0", "1": "attentions.0", "2": "resnets.1"}
_SIDE = {"conv1": "conv_in", "head.0": "norm_out", "head.2": "conv_out"}
_QUANT = {"conv1": "quant_conv", "conv2": "post_quant_conv"}
_VAE_MIDDLE = re.compile(r"(encoder|decoder)\.middle\.(\d)\.(.+)\.(\w+)")
_VAE_STAGE = re.compile(r"(encoder|decoder)\.(down|up)samples\.(\d+)\.(?:(?:down|up)samples\.(\d+)\.)?(.+)\.(\w+)")


def vae_name(name: str, decoder_stage: int) -> str:
    """`decoder_stage` is how many layers of Wan 2.1's decoder, where they are one list, are a stage."""
    stem, _, kind = name.rpartition(".")
    if stem in _QUANT:
        return f"{_QUANT[stem]}.{kind}"
    if middle := _VAE_MIDDLE.fullmatch(name):
        inner = _RESIDUAL.get(middle[3], middle[3])
        return f"{middle[1]}.mid_block.{_MIDDLE.get(middle[2], middle[2])}.{inner}.{middle[4]}"
    if stage := _VAE_STAGE.fullmatch(name):
        side, way, place, nested, inner, kind = stage.groups()
        resamples = inner.startswith(("resample.", "time_conv"))
        inner = _RESIDUAL.get(inner, inner)
        if nested is not None:
            layer = f"{place}.{way}sampler" if resamples else f"{place}.resnets.{nested}"
        elif side == "decoder":
            number, rest = divmod(int(place), decoder_stage)
            layer = f"{number}.upsamplers.0" if resamples else f"{number}.resnets.{rest}"
        else:
            layer = place
        return f"{side}.{way}_blocks.{layer}.{inner}.{kind}"
    side, _, inner = stem.partition(".")
    return f"{side}.{_SIDE.get(inner, inner)}.{kind}"


def vae_decoder_stage(names: list[str]) -> int:
    """How many layers of a decoder that is one list are a stage: the first that enlarges is the last of its stage."""
    places = [int(found[3]) for found in map(_VAE_STAGE.fullmatch, names) if found and _enlarges(found)]
    return min(places, default=0) + 1


def _enlarges(found: re.Match[str]) -> bool:
    return found[1] == "decoder" and found[5].startswith("resample.")


_TEXT_TOP = {"token_embedding": "shared", "norm": "encoder.final_layer_norm"}
_TEXT_LAYER = {
    "norm1": "layer.0.layer_norm",
    **{f"attn.{part}": f"layer.0.SelfAttention.{part}" for part in "qkvo"},
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "norm2": "layer.1.layer_norm",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
}


def text_encoder_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    block = _IN_BLOCK.fullmatch(stem)
    if block is None:
        return f"{_TEXT_TOP.get(stem, stem)}.{kind}"
    return f"encoder.block.{block[1].removeprefix('blocks.')}.{_TEXT_LAYER.get(block[2], block[2])}.{kind}"


def renamed(tensors: Mapping[str, Tensor], part: Part) -> dict[str, Tensor]:
    """With the names that diffusers, or for the text encoder transformers, gives them; TAEHV's keep theirs."""
    namers: dict[Part, Callable[[str], str]] = {
        Part.TRANSFORMER: transformer_name,
        Part.TEXT_ENCODER: text_encoder_name,
        Part.TINY_VAE: str,
    }
    if part is Part.VAE:
        stage = vae_decoder_stage(list(tensors))
        return {vae_name(name, stage): tensor for name, tensor in tensors.items()}
    return {namers[part](name): tensor for name, tensor in tensors.items()}
