"""Small random text models of transformers' with ours beside them, and generators over a few pages."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig as HfLlamaConfig
from transformers import (
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from streamsynth.engine.attention import PageMemory
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Runner, StepRunner
from streamsynth.models.llama.config import LlamaConfig
from streamsynth.models.llama.detokenise import TokenBytes
from streamsynth.models.llama.generator import TextGenerator
from streamsynth.models.llama.model import LlamaModel
from streamsynth.models.llama.weights import build_llama

VOCABULARY = 60
PAGE_SIZE = 8
FAMILIES = {"llama": 10, "llama-tied": 4, "qwen2": 12, "qwen3": 4}
"""With seeds whose models never come near a tie where the tests go."""


def reference_model(family: str) -> PreTrainedModel:
    """Sharp heads: the best token leads by far more than float32 rounding."""
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 7,
        "pad_token_id": None,
        "tie_word_embeddings": family == "llama-tied",
    }
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    with torch.random.fork_rng():
        torch.manual_seed(FAMILIES[family])
        model: PreTrainedModel
        if family == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**sizes))
        elif family == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=24))
        else:
            model = LlamaForCausalLM(HfLlamaConfig(**sizes, rope_parameters=rope, mlp_bias=family == "llama"))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.normal_(float("norm" in name), 0.1)
                else:
                    parameter.normal_(0.0, 2.0 * parameter.shape[1] ** -0.5)
            model.lm_head.weight.mul_(4)
    return model.eval()


def ours(model: PreTrainedModel) -> LlamaModel:
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return build_llama(LlamaConfig.from_hf(model.config.to_dict()), tensors, "reference")


def page_memory(model: LlamaModel, pages: int = 400) -> PageMemory:
    decoder = model.config.decoder
    return PageMemory(
        layers=decoder.layers,
        pages=pages,
        page_size=PAGE_SIZE,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        like=model.embedding.weight,
    )


def letters() -> Tokenizer:
    """A token for each letter from A on, and one that is special."""
    tokenizer = Tokenizer(models.BPE({chr(65 + number): number for number in range(VOCABULARY - 1)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def generator(model: LlamaModel, runner: StepRunner | None = None, *, pages: int = 400) -> TextGenerator:
    planner = Planner(PagePool(pages), page_size=PAGE_SIZE, max_rows=8, max_tokens=16)
    runner = runner or Runner(model, page_memory(model, pages))
    return TextGenerator(model.config, TokenBytes(letters()), runner, planner, page_size=PAGE_SIZE)
