"""Tokenizers that split into letters, and text encoders of a few thousand weights."""

from __future__ import annotations

import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    LlamaConfig,
    LlamaModel,
    LlamaTokenizer,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"-<>|_()"
WIDTH = 32


def t5_tokenizer() -> T5Tokenizer:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), ("▁", -2.0)]
    return T5Tokenizer(vocab=pieces + [(letter, -3.0) for letter in LETTERS], extra_ids=0, model_max_length=512)


def t5_encoder() -> T5EncoderModel:
    torch.manual_seed(1)
    config = T5Config(vocab_size=128, d_model=WIDTH, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    return T5EncoderModel(config).eval()


def umt5_encoder() -> UMT5EncoderModel:
    torch.manual_seed(1)
    config = UMT5Config(vocab_size=128, d_model=WIDTH, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    return UMT5EncoderModel(config).eval()


def clip_tokenizer() -> CLIPTokenizer:
    letters = [letter + end for letter in LETTERS.lower() for end in ("", "</w>")]
    words = ["<|startoftext|>", "<|endoftext|>", *dict.fromkeys(letters)]
    return CLIPTokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[], model_max_length=77)


def clip_encoder(*, projected: bool = False, width: int = WIDTH) -> CLIPTextModel | CLIPTextModelWithProjection:
    torch.manual_seed(2)
    config = CLIPTextConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=37,
        num_hidden_layers=3,
        num_attention_heads=4,
        projection_dim=width,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval()


def llama_tokenizer() -> LlamaTokenizer:
    words = ["<unk>", "<s>", "</s>", "▁", *LETTERS, *(f"<0x{byte:02X}>" for byte in range(256))]
    made = LlamaTokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[], model_max_length=512)
    made.pad_token = "</s>"
    return made


def llama_encoder() -> LlamaModel:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=WIDTH,
        intermediate_size=37,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    return LlamaModel(config).eval()


def qwen_tokenizer() -> Qwen2Tokenizer:
    letters = ["Ġ", "Ċ", *LETTERS]
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters]
    made = Qwen2Tokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[], model_max_length=512)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return made


def qwen3_encoder() -> Qwen3Model:
    torch.manual_seed(4)
    config = Qwen3Config(
        vocab_size=256,
        hidden_size=WIDTH,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    return Qwen3Model(config).eval()


def qwen_vl_encoder() -> Qwen2_5_VLForConditionalGeneration:
    torch.manual_seed(5)
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 256,
            "hidden_size": WIDTH,
            "intermediate_size": 37,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 37,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
        },
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def gemma_tokenizer() -> GemmaTokenizer:
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *LETTERS]
    made = GemmaTokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[], model_max_length=512)
    made.padding_side = "right"
    return made


def gemma_encoder() -> Gemma2Model:
    torch.manual_seed(6)
    config = Gemma2Config(
        vocab_size=256,
        hidden_size=WIDTH,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    return Gemma2Model(config).eval()
