"""A folder in diffusers' `WanPipeline` layout whose weights say nothing, at any size: to measure without real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn

from streamsynth.models.wan.config import WAN_1_3B, WanConfig
from streamsynth.models.wan.text_encoder import TextEncoderConfig
from streamsynth.models.wan.tiny_vae import TinyVae, TinyVaeConfig
from streamsynth.models.wan.vae_config import VaeConfig
from streamsynth.models.wan.weights import DIFFUSERS_STEM

TINY_VAE = "tiny_vae"
"""The subfolder of the tiny decoder, which `WanPipeline` does not have."""

_END = "</s>"

_INDEX = {
    "_class_name": "WanPipeline",
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": [None, None],
    "vae": ["diffusers", "AutoencoderKLWan"],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WanSizes:
    """The defaults are Wan 2.1 T2V 1.3B's, with its whole text encoder, but for the words it knows: bytes."""

    transformer: WanConfig = WAN_1_3B
    text_encoder: TextEncoderConfig = field(default_factory=lambda: TextEncoderConfig(vocab_size=257))
    vae: VaeConfig = field(default_factory=VaeConfig)
    tiny_vae: TinyVaeConfig = field(default_factory=TinyVaeConfig)


def write_random_wan(folder: Path, sizes: WanSizes, *, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> None:
    """All that diffusers loads as a `WanPipeline`, and a `tiny_vae` beside it; blocking. Needs diffusers and
    transformers, whose names these are."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanTransformer3DModel
    from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

    # Their constructors have no types.
    make_transformer: Any = WanTransformer3DModel
    make_vae: Any = AutoencoderKLWan
    make_text_encoder: Any = UMT5EncoderModel
    with torch.device("meta"):
        transformer = make_transformer(**asdict(sizes.transformer))
        vae = make_vae(**_of_reference(asdict(sizes.vae)))
        text_encoder = make_text_encoder(UMT5Config(**asdict(sizes.text_encoder)))
        tiny_vae = TinyVae(sizes.tiny_vae)
    values = _Values(dtype, seed)
    transformer.save_config(folder / "transformer")
    values.save(transformer, folder / "transformer" / f"{DIFFUSERS_STEM}.safetensors")
    vae.save_config(folder / "vae")
    values.save(vae, folder / "vae" / f"{DIFFUSERS_STEM}.safetensors")
    text_encoder.config.save_pretrained(folder / "text_encoder")
    values.save(text_encoder, folder / "text_encoder" / "model.safetensors", without=("encoder.embed_tokens.weight",))
    (folder / TINY_VAE).mkdir(exist_ok=True)
    (folder / TINY_VAE / "config.json").write_text(json.dumps(asdict(sizes.tiny_vae)))
    values.save(tiny_vae, folder / TINY_VAE / f"{DIFFUSERS_STEM}.safetensors")
    new_tokenizer: Any = PreTrainedTokenizerFast
    new_tokenizer(tokenizer_object=_byte_tokenizer(), eos_token=_END, pad_token=_END).save_pretrained(
        folder / "tokenizer"
    )
    new_scheduler: Any = UniPCMultistepScheduler
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    new_scheduler(**flow).save_config(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(_INDEX, indent=1))


def _of_reference(vae: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vae.items()}


class _Values:
    """Norms of ones, biases of zeros, and matrices under which activations keep their size."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        # A few megabytes drawn once are enough: nobody looks.
        self._drawn = torch.randn(1 << 22, generator=torch.Generator().manual_seed(seed)).to(dtype)

    def save(self, model: nn.Module, path: Path, *, without: tuple[str, ...] = ()) -> None:
        shapes: Mapping[str, Tensor] = model.state_dict()
        tensors = {name: self._random(name, each.shape) for name, each in shapes.items() if name not in without}
        save_file(tensors, path, {"format": "pt"})

    def _random(self, name: str, shape: torch.Size) -> Tensor:
        if name.endswith("bias"):
            return self._drawn.new_zeros(shape)
        if len(shape) == 1 or name.endswith("gamma"):
            return self._drawn.new_ones(shape)
        count = shape.numel()
        repeated = self._drawn.repeat(-(-count // len(self._drawn)))[:count]
        return repeated.view(shape).mul_(shape[1:].numel() ** -0.5)


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_END])
    end = tokenizer.token_to_id(_END)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {_END}", special_tokens=[(_END, end)])
    return tokenizer
