"""Sizes and settings of a Llama-layout decoder, read from a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamsynth.errors import invalid_value


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """The "llama3" stretching of rotary frequencies (transformers `_compute_llama3_parameters`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """A stack of pre-norm layers with rotary grouped-query attention and a gated SiLU feed-forward."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 2048
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """Raises INVALID_VALUE for an activation, a rotary type or a windowed attention that is not built here."""
        kind = config.get("model_type", "llama")
        if config.get("hidden_act", "silu") != "silu":
            raise invalid_value("hidden_act", config["hidden_act"], "silu")
        if config.get("use_sliding_window"):
            raise invalid_value("use_sliding_window", True, "false")
        heads = config["num_attention_heads"]
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        attention_bias = bool(config.get("attention_bias", False))
        return cls(
            hidden_size=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate_size=config["intermediate_size"],
            rms_norm_eps=config.get("rms_norm_eps", 1e-5),
            rope_theta=rope.get("rope_theta") or config.get("rope_theta", 10000.0),
            rope_scaling=_rope_scaling(rope),
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            qkv_bias=attention_bias or kind == "qwen2",
            output_bias=attention_bias and kind != "qwen2",
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=kind == "qwen3",
        )


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise invalid_value("rope_type", kind, "default or llama3")
    return RopeScaling(
        factor=rope["factor"],
        low_freq_factor=rope["low_freq_factor"],
        high_freq_factor=rope["high_freq_factor"],
        original_max_position_embeddings=rope["original_max_position_embeddings"],
    )


MODEL_TYPES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaConfig:
    """A text model: the decoder, its vocabulary, and the tokens that end a text. A `tied` head is the embedding."""

    decoder: DecoderConfig
    vocab_size: int
    tied: bool
    eos: frozenset[int]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> LlamaConfig:
        """From `config.json` and, where there is one, `generation_config.json`, whose end tokens count.

        Raises INVALID_VALUE for a `model_type` that is not built here.
        """
        kind = config.get("model_type")
        if kind not in MODEL_TYPES:
            raise invalid_value("model_type", kind, " or ".join(MODEL_TYPES))
        eos = (generation or {}).get("eos_token_id", config.get("eos_token_id"))
        return cls(
            decoder=DecoderConfig.from_hf(config),
            vocab_size=config["vocab_size"],
            tied=config.get("tie_word_embeddings", False),
            eos=frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos),
        )
