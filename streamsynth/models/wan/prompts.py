"""Prompts to what the transformer reads: cleaned, cut into tokens, encoded, and padded with zeros to one length."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.llama.detokenise import load_tokenizer
from streamsynth.models.llama.weights import load_strict, read_tensors
from streamsynth.models.wan.text_encoder import TextEncoder, TextEncoderConfig

WAN_TEXT_TOKENS = 512
"""The length that Wan's transformers were trained on: they attend to the padding too."""

_LAYER = {
    "layer.0.layer_norm.weight": "attention_norm.weight",
    "layer.0.SelfAttention.o.weight": "out.weight",
    "layer.0.SelfAttention.relative_attention_bias.weight": "distance.weight",
    "layer.1.layer_norm.weight": "forward_norm.weight",
    "layer.1.DenseReluDense.wo.weight": "down.weight",
}
_FUSED = {
    "qkv.weight": tuple(f"layer.0.SelfAttention.{part}.weight" for part in "qkv"),
    "gate_up.weight": ("layer.1.DenseReluDense.wi_0.weight", "layer.1.DenseReluDense.wi_1.weight"),
}
_EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight")
"""One tensor under two names: a checkpoint has either, or both."""


def clean(prompt: str) -> str:
    """As the reference pipeline does, save that it also mends mis-encoded text where ftfy is installed."""
    return " ".join(html.unescape(html.unescape(prompt)).split())


class PromptEncoder:
    """A tokenizer and an encoder. `length` is what embeddings are padded to, and the most tokens a prompt may have."""

    def __init__(self, tokenizer: Tokenizer, encoder: TextEncoder, *, length: int = WAN_TEXT_TOKENS) -> None:
        self._tokenizer = tokenizer
        self.encoder = encoder
        self.length = length

    def tokens(self, prompt: str) -> list[int]:
        """Raises TEXT_TOO_LONG: a prompt is not cut short in silence."""
        ids: list[int] = self._tokenizer.encode(clean(prompt)).ids
        if len(ids) > self.length:
            message = f"prompt is {len(ids)} tokens; it must be at most {self.length}"
            raise StreamSynthError(ErrorCode.TEXT_TOO_LONG, message, param="prompt")
        return ids

    @torch.inference_mode()
    def in_full(self, prompt: str, _before: str | None, _seed: int) -> str:
        """Itself: a Wan prompt says everything, whatever was said before."""
        return prompt

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Embeddings (prompts, length, d_model); blocking."""
        rows = [self.tokens(prompt) for prompt in prompts]
        device, longest = self.encoder.embedding.weight.device, max(1, *map(len, rows))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        encoded = self.encoder(padded, lengths)
        made = encoded.new_zeros(len(rows), self.length, encoded.shape[2])
        made[:, :longest] = encoded
        return made


def text_encoder_weights(tensors: Mapping[str, Tensor], config: TextEncoderConfig) -> dict[str, Tensor]:
    """The state dict of `TextEncoder` from transformers' names; a name that is not known stays, to be refused."""
    left = dict(tensors)
    state: dict[str, Tensor] = {}
    for name in _EMBEDDINGS:
        if name in left:
            state["embedding.weight"] = left.pop(name)
    if "encoder.final_layer_norm.weight" in left:
        state["norm.weight"] = left.pop("encoder.final_layer_norm.weight")
    for index in range(config.num_layers):
        source, target = f"encoder.block.{index}.", f"layers.{index}."
        for theirs, ours in _LAYER.items():
            if source + theirs in left:
                state[target + ours] = left.pop(source + theirs)
        for ours, parts in _FUSED.items():
            if all(source + name in left for name in parts):
                state[target + ours] = torch.cat([left.pop(source + name) for name in parts])
    return state | left


def build_text_encoder(
    config: TextEncoderConfig,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> TextEncoder:
    """An encoder ready to run from tensors with transformers' names; `source` is named in errors."""
    with torch.device("meta"):
        encoder = TextEncoder(config)
    encoder = encoder.to(dtype).to_empty(device=device)
    load_strict(encoder, text_encoder_weights(tensors, config), source)
    return encoder.requires_grad_(False).eval()


def load_prompt_encoder(
    text_encoder: Path,
    tokenizer: Path,
    *,
    length: int = WAN_TEXT_TOKENS,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> PromptEncoder:
    """Read the `text_encoder` and `tokenizer` folders of a pipeline; blocking.

    Raises START_FAILED for files or names that do not fit, INVALID_VALUE for a model not built here.
    """
    config = TextEncoderConfig.from_hf(json.loads((text_encoder / "config.json").read_text()))
    tensors = read_tensors(text_encoder)
    encoder = build_text_encoder(config, tensors, str(text_encoder), dtype=dtype, device=device)
    chosen = load_tokenizer(tokenizer)
    chosen.no_padding()
    chosen.no_truncation()
    return PromptEncoder(chosen, encoder, length=length)
