"""A folder in the layout of Sesame's CSM whose weights say nothing, at any size: to measure a server without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from streamsynth.models.csm.config import CsmConfig
from streamsynth.models.csm.prompts import BEGIN, END
from streamsynth.models.llama.config import DecoderConfig
from streamsynth.models.mimi.config import MimiConfig
from streamsynth.models.mimi.weights import random_tensors


def write_random_csm(
    folder: Path, config: CsmConfig, codec: MimiConfig, *, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> None:
    """`config.json`, `tokenizer.json` (a token a byte) and `model.safetensors`; blocking. The end of audio never comes:
    its code is one that the vocabulary does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_hf_config(config, codec), indent=2))
    _byte_tokenizer().save(str(folder / "tokenizer.json"))
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(shape, generator).to(dtype) for name, shape in _shapes(config)}
    tensors |= {f"codec_model.{name}": tensor for name, tensor in random_tensors(codec, seed).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Norms of ones, embeddings of unit size, and matrices under which activations keep theirs."""
    if len(shape) == 1:
        return torch.ones(shape)
    # A few megabytes drawn once are enough: nobody listens.
    drawn = torch.randn(min(1 << 20, torch.Size(shape).numel()), generator=generator)
    repeated = drawn.repeat(-(-torch.Size(shape).numel() // len(drawn)))[: torch.Size(shape).numel()]
    return repeated.view(shape).mul_(shape[-1] ** -0.5)


def _shapes(config: CsmConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Under transformers' names."""
    width, depth_width = config.backbone.hidden_size, config.depth.hidden_size
    yield "embed_text_tokens.weight", (config.text_vocab_size, width)
    yield "depth_decoder.model.embed_tokens.weight", (config.codebooks * config.vocab_size, width)
    yield "lm_head.weight", (config.vocab_size, width)
    yield "depth_decoder.model.inputs_embeds_projector.weight", (depth_width, width)
    yield "depth_decoder.codebooks_head.weight", (config.codebooks - 1, depth_width, config.vocab_size)
    yield from _decoder_shapes("backbone_model.", config.backbone)
    yield from _decoder_shapes("depth_decoder.model.", config.depth)


def _decoder_shapes(prefix: str, config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for number in range(config.layers):
        layer = f"{prefix}layers.{number}."
        yield f"{layer}input_layernorm.weight", (width,)
        yield f"{layer}post_attention_layernorm.weight", (width,)
        yield f"{layer}self_attn.q_proj.weight", (queries, width)
        yield f"{layer}self_attn.k_proj.weight", (keys, width)
        yield f"{layer}self_attn.v_proj.weight", (keys, width)
        yield f"{layer}self_attn.o_proj.weight", (width, queries)
        yield f"{layer}mlp.gate_proj.weight", (inner, width)
        yield f"{layer}mlp.up_proj.weight", (inner, width)
        yield f"{layer}mlp.down_proj.weight", (width, inner)
    yield f"{prefix}norm.weight", (width,)


def _hf_config(config: CsmConfig, codec: MimiConfig) -> dict[str, Any]:
    depth = {
        **_hf_decoder(config.depth),
        "model_type": "csm_depth_decoder_model",
        "num_codebooks": config.codebooks,
        "vocab_size": config.vocab_size,
        "backbone_hidden_size": config.backbone.hidden_size,
    }
    own = {
        "architectures": ["CsmForConditionalGeneration"],
        "model_type": "csm",
        "num_codebooks": config.codebooks,
        "vocab_size": config.vocab_size,
        "text_vocab_size": config.text_vocab_size,
        "codebook_eos_token_id": config.vocab_size,
        "codebook_pad_token_id": config.vocab_size - 1,
        "audio_token_id": config.audio_token,
        "audio_eos_token_id": config.audio_eos_token,
        "bos_token_id": None,
        "pad_token_id": None,
        "tie_codebooks_embeddings": True,
    }
    mimi = {field.name: getattr(codec, field.name) for field in fields(codec)} | {"model_type": "mimi"}
    return {**_hf_decoder(config.backbone), **own, "depth_decoder_config": depth, "codec_config": mimi}


def _hf_decoder(config: DecoderConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        rope = {"rope_type": "llama3", **asdict(config.rope_scaling)}
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
    }


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BEGIN, END])
    return tokenizer
