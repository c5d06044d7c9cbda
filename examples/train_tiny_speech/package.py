"""Packs codec and talker as published: float16 safetensors in the Hugging Face layouts, and the text vocabulary."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import EncodecFeatureExtractor, GenerationConfig, MimiModel

from train_tiny_speech.codec import load_codec
from train_tiny_speech.frames import SAMPLE_RATE
from train_tiny_speech.sampling import Sampling
from train_tiny_speech.talker_files import load_talker, save_talker
from train_tiny_speech.text_tokens import BEGIN, PAD, vocabulary


def package_codec(source: Path, folder: Path) -> None:
    codec: MimiModel = load_codec(source).to(torch.float16)
    codec.save_pretrained(folder)
    EncodecFeatureExtractor(feature_size=1, sampling_rate=SAMPLE_RATE, padding_value=0.0).save_pretrained(folder)


def package_talker(source: Path, folder: Path, sampling: Sampling) -> None:
    """Without a `pad_token_id` for the depth decoder: `generate` would mask position 0, the backbone's state."""
    talker = load_talker(source)
    talker.config.dtype = torch.float16
    save_talker(talker, folder)
    GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_frames,
        bos_token_id=BEGIN,
        pad_token_id=PAD,
        depth_decoder_do_sample=True,
        depth_decoder_temperature=sampling.depth_temperature,
        depth_decoder_top_k=sampling.top_k,
    ).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codec", type=Path)
    parser.add_argument("talker", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    package_codec(arguments.codec, arguments.out / "codec")
    package_talker(arguments.talker, arguments.out / "talker", Sampling())
    (arguments.out / "vocab.json").write_text(json.dumps(vocabulary(), ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
