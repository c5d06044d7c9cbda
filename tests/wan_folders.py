"""A whole checkpoint in diffusers' `WanPipeline` layout at small random sizes, and the models it was saved from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import UMT5Config, UMT5EncoderModel
from wan_models import SMALL, TINY_VAE, reference_transformer, reference_vae

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "blue", "ball", "over", "the", "sea", "calm"]


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    transformer: WanTransformer3DModel
    vae: AutoencoderKLWan
    text_encoder: UMT5EncoderModel
    tokenizer: Tokenizer


def save_checkpoint(folder: Path) -> Checkpoint:
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    torch.manual_seed(0)
    text_encoder = UMT5EncoderModel(
        UMT5Config(vocab_size=20, d_model=SMALL["text_dim"], d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    ).eval()
    transformer = reference_transformer(SMALL | {"in_channels": 3, "out_channels": 3})
    vae = reference_vae(TINY_VAE)
    text_encoder.save_pretrained(folder / "text_encoder")
    transformer.save_pretrained(folder / "transformer")
    vae.save_pretrained(folder / "vae")
    return Checkpoint(folder, transformer, vae, text_encoder, tokenizer)
