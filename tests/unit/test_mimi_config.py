"""What of a Mimi `config.json` is understood, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from mimi_models import SMALL, settings_of_models
from transformers import MimiConfig as HfConfig
from transformers import MimiModel

from streamsynth.errors import StreamSynthError
from streamsynth.models.mimi.config import MimiConfig
from streamsynth.models.mimi.layout import tensor_shapes

# As the codec of a CSM checkpoint has it: written by transformers 4, with every default of a generating model.
OLD: dict[str, Any] = {
    "_attn_implementation_autoset": False,
    "_name_or_path": "kyutai/mimi",
    "add_cross_attention": False,
    "architectures": ["MimiModel"],
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "chunk_size_feed_forward": 0,
    "frame_rate": 12.5,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "is_encoder_decoder": False,
    "model_type": "mimi",
    "normalize": False,
    "pruned_heads": {},
    "rope_theta": 10000.0,
    "top_k": 50,
    "torch_dtype": "float32",
    "transformers_version": "4.51.0.dev0",
    "use_bfloat16": False,
}


def test_the_defaults_are_those_of_transformers() -> None:
    assert MimiConfig.from_hf(HfConfig().to_dict()) == MimiConfig.from_hf({}) == MimiConfig()


def test_a_stock_frame_is_80_ms() -> None:
    config = MimiConfig()
    assert (config.frame_samples, config.hop_samples, config.frame_rate) == (1920, 960, 12.5)


def test_files_of_older_transformers_mean_the_same() -> None:
    assert MimiConfig.from_hf(OLD) == MimiConfig()
    assert MimiConfig.from_hf({"rope_theta": 500.0}).rope_theta == 500.0
    assert MimiConfig.from_hf({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}).rope_theta == 500.0


def test_what_is_absent_or_null_follows_the_sizes_as_in_transformers() -> None:
    given: dict[str, Any] = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "upsample_groups": 1,
        "head_dim": None,
        "upsampling_ratios": None,
    }
    config, reference = MimiConfig.from_hf(given), HfConfig(**given)
    assert config.head_dim == reference.head_dim == 16
    assert list(config.upsampling_ratios) == reference.upsampling_ratios


@settings(max_examples=15, deadline=None)
@given(settings_of_models())
def test_every_tensor_of_the_file_is_known_with_its_shape(options: dict[str, Any]) -> None:
    reference = HfConfig(**options)
    with torch.device("meta"):
        stored = {name: tuple(tensor.shape) for name, tensor in MimiModel(reference).state_dict().items()}
    config = MimiConfig.from_hf(reference.to_dict())
    assert tensor_shapes(config) == stored
    assert (config.frame_samples, config.frame_rate) == (reference.frame_size, reference.frame_rate)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model_type", "encodec"),
        ("audio_channels", 2),
        ("use_causal_conv", False),
        ("trim_right_ratio", 0.5),
        ("pad_mode", "reflect"),
        ("hidden_act", "tanh"),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("frame_rate", 25.0),
        ("_frame_rate", 6.25),
        ("num_semantic_quantizers", 32),
        ("num_semantic_quantizers", 0),
        ("codebook_dim", 128),
        ("upsample_groups", 3),
        ("head_dim", 63),
        ("num_key_value_heads", 3),
        ("compress", 65),
        ("num_residual_layers", 0),
        ("sliding_window", 0),
        ("upsampling_ratios", [8, 0]),
        ("sampling_rate", 1000),
        ("codebook_dim", None),
        ("residual_kernel_size", [3, 1]),
    ],
)
def test_a_value_that_is_not_built_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(StreamSynthError, match=setting) as refused:
        MimiConfig.from_hf({setting: value})
    assert refused.value.param == setting


def test_other_rotary_embeddings_are_refused() -> None:
    with pytest.raises(StreamSynthError) as refused:
        MimiConfig.from_hf({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0}})
    assert refused.value.param == "rope_parameters.rope_type"


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(StreamSynthError, match="use_gating") as refused:
        MimiConfig.from_hf({**SMALL, "use_gating": True})
    assert refused.value.param == "use_gating"
