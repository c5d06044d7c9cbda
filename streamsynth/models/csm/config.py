"""A CSM talker's sizes, read from the Hugging Face `config.json` of `CsmForConditionalGeneration`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamsynth.errors import invalid_value
from streamsynth.models.llama.config import DecoderConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class CsmConfig:
    """A frame of `eos_code` alone ends the audio; `audio_token` and `audio_eos_token` mark audio in a prompt."""

    backbone: DecoderConfig
    depth: DecoderConfig
    codebooks: int
    vocab_size: int
    text_vocab_size: int
    eos_code: int
    audio_token: int
    audio_eos_token: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> CsmConfig:
        depth = config["depth_decoder_config"]
        codebooks = config["num_codebooks"]
        if depth["num_codebooks"] != codebooks:
            raise invalid_value(
                "depth_decoder_config.num_codebooks", depth["num_codebooks"], f"num_codebooks ({codebooks})"
            )
        if depth["vocab_size"] != config["vocab_size"]:
            raise invalid_value(
                "depth_decoder_config.vocab_size", depth["vocab_size"], f"vocab_size ({config['vocab_size']})"
            )
        return cls(
            backbone=DecoderConfig.from_hf(config),
            depth=DecoderConfig.from_hf(depth),
            codebooks=codebooks,
            vocab_size=config["vocab_size"],
            text_vocab_size=config["text_vocab_size"],
            eos_code=config["codebook_eos_token_id"],
            audio_token=config["audio_token_id"],
            audio_eos_token=config["audio_eos_token_id"],
        )
