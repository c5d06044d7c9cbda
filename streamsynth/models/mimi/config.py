"""A Mimi codec's sizes, read from the Hugging Face `config.json` of `MimiModel`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value

ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "relu", "silu")
PAD_MODES = ("constant", "replicate")

# Settings of which one value is built here. Absent means that value.
_FIXED: Mapping[str, Any] = {
    "model_type": "mimi",
    "audio_channels": 1,
    "use_causal_conv": True,
    "trim_right_ratio": 1.0,
    "rope_scaling": None,
    "normalize": False,
    "pruned_heads": {},
    "is_encoder_decoder": False,
    "add_cross_attention": False,
}
# Read below, beside the fields.
_ALIASES = frozenset({"rope_parameters", "rope_theta", "frame_rate", "_frame_rate"})
# What changes training, generation or a file's description, but never the codec's arithmetic.
_WITHOUT_EFFECT = re.compile(
    r"_attn_implementation\w*|_commit_hash|_name_or_path|architectures|attention_dropout|bad_words_ids|begin_suppress_tokens"
    r"|(bos|eos|pad|sep|decoder_start|forced_bos|forced_eos)_token_id|chunk_size_feed_forward"
    r"|cross_attention_hidden_size|diversity_penalty|do_sample|(torch_)?dtype|early_stopping"
    r"|exponential_decay_length_penalty|finetuning_task|id2label|label2id|initializer_range|is_decoder"
    r"|layer_scale_initial_scale|(length|repetition)_penalty|(max|min)_length|max_position_embeddings"
    r"|(encoder_)?no_repeat_ngram_size|num_beam_groups|num_beams|num_return_sequences"
    r"|output_(attentions|hidden_states|scores)|prefix|problem_type|remove_invalid_values|return_dict(_in_generate)?"
    r"|suppress_tokens|task_specific_params|temperature|tf_legacy_loss|tie_(encoder_decoder|word_embeddings)"
    r"|tokenizer_class|top_k|top_p|torchscript|transformers_version|typical_p|use_(bfloat16|cache|streaming)"
)
_AT_LEAST_ONE = (
    "sampling_rate",
    "hidden_size",
    "num_filters",
    "num_residual_layers",
    "kernel_size",
    "last_kernel_size",
    "residual_kernel_size",
    "dilation_growth_rate",
    "compress",
    "codebook_size",
    "codebook_dim",
    "upsample_groups",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MimiConfig:
    """Field names and defaults are those of transformers' `MimiConfig`; rates are in Hz, sizes in channels."""

    sampling_rate: int = 24_000
    hidden_size: int = 512
    num_filters: int = 64
    num_residual_layers: int = 1
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    dilation_growth_rate: int = 2
    pad_mode: str = "constant"
    compress: int = 2
    use_conv_shortcut: bool = False
    codebook_size: int = 2048
    codebook_dim: int = 256
    num_quantizers: int = 32
    num_semantic_quantizers: int = 1
    vector_quantization_hidden_dimension: int = 256
    upsample_groups: int = 512
    num_hidden_layers: int = 8
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int = 64
    hidden_act: str = "gelu"
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    sliding_window: int = 250
    attention_bias: bool = False

    @property
    def hop_samples(self) -> int:
        """Samples for one step of the transformers: half a frame."""
        return math.prod(self.upsampling_ratios)

    @property
    def frame_samples(self) -> int:
        """Samples for one frame of codes."""
        return 2 * self.hop_samples

    @property
    def frame_rate(self) -> float:
        return self.sampling_rate / self.frame_samples

    @property
    def projects_codes(self) -> bool:
        """Whether the codebooks live in a space of their own, with projections to and from it."""
        return self.vector_quantization_hidden_dimension != self.hidden_size

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> MimiConfig:
        """Raises UNSUPPORTED_FIELD for a setting not known here, INVALID_VALUE for a value not built here."""
        ours = {field.name for field in fields(cls)}
        _refuse_unknown(
            {name for name in config if not _WITHOUT_EFFECT.fullmatch(name)} - ours - _ALIASES - _FIXED.keys()
        )
        for name, only in _FIXED.items():
            if config.get(name, only) != only:
                raise invalid_value(name, config[name], repr(only))
        given = {name: config[name] for name in ours & set(config)}
        given["upsampling_ratios"] = tuple(given.get("upsampling_ratios") or (8, 6, 5, 4))
        given["rope_theta"] = _rope_theta(config)
        hidden, heads = given.get("hidden_size", 512), given.get("num_attention_heads", 8)
        given["head_dim"] = given.get("head_dim") or hidden // heads
        made = cls(**given)
        _check_frame_rate(made, config)
        return made

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise invalid_value(name, value, "a whole number of at least 1")
        if not self.upsampling_ratios or min(self.upsampling_ratios) < 1:
            raise invalid_value("upsampling_ratios", self.upsampling_ratios, "whole numbers of at least 1")
        if self.pad_mode not in PAD_MODES:
            raise invalid_value("pad_mode", self.pad_mode, " or ".join(PAD_MODES))
        if self.hidden_act not in ACTIVATIONS:
            raise invalid_value("hidden_act", self.hidden_act, " or ".join(ACTIVATIONS))
        if not 1 <= self.num_semantic_quantizers < self.num_quantizers:
            limit = f"at least 1 and below num_quantizers ({self.num_quantizers})"
            raise invalid_value("num_semantic_quantizers", self.num_semantic_quantizers, limit)
        if self.codebook_dim != self.vector_quantization_hidden_dimension:
            limit = f"vector_quantization_hidden_dimension ({self.vector_quantization_hidden_dimension})"
            raise invalid_value("codebook_dim", self.codebook_dim, limit)
        if self.hidden_size % self.upsample_groups:
            limit = f"a divisor of hidden_size ({self.hidden_size})"
            raise invalid_value("upsample_groups", self.upsample_groups, limit)
        if self.head_dim % 2:
            raise invalid_value("head_dim", self.head_dim, "even")
        if self.num_attention_heads % self.num_key_value_heads:
            limit = f"a divisor of num_attention_heads ({self.num_attention_heads})"
            raise invalid_value("num_key_value_heads", self.num_key_value_heads, limit)
        if self.compress > self.num_filters:
            raise invalid_value("compress", self.compress, f"at most num_filters ({self.num_filters})")


def _refuse_unknown(names: set[str]) -> None:
    if names:
        first = min(names)
        message = f"Mimi configuration: unknown {', '.join(sorted(names)[:5])}"
        raise StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, message, param=first)


def _rope_theta(config: Mapping[str, Any]) -> float:
    """`rope_parameters` holds it; files before transformers 5 have `rope_theta` beside the other settings."""
    rope = config.get("rope_parameters") or {}
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise invalid_value("rope_parameters.rope_type", kind, "default")
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)


def _check_frame_rate(made: MimiConfig, config: Mapping[str, Any]) -> None:
    """Frames are two transformer steps, resampled with kernels of four: other rates are other architectures."""
    for name in ("frame_rate", "_frame_rate"):
        given = config.get(name)
        if given is not None and given != made.frame_rate:
            raise invalid_value(name, given, f"{made.frame_rate:g}, which the sampling rate and ratios give")
    steps_per_second = math.ceil(made.sampling_rate / made.hop_samples)
    if int(steps_per_second / made.frame_rate) != 2:
        raise invalid_value("sampling_rate", made.sampling_rate, f"far above {made.hop_samples} samples a step")
