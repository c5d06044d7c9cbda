"""From the Hugging Face names of a Llama-layout decoder to ours: fused projections, nothing else changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from streamsynth.engine.mapped import undamaged
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.llama.config import LlamaConfig
from streamsynth.models.llama.model import LlamaModel

_PLAIN = {
    "input_layernorm.weight": "input_norm.weight",
    "post_attention_layernorm.weight": "post_norm.weight",
    "self_attn.o_proj.weight": "attention.out.weight",
    "self_attn.o_proj.bias": "attention.out.bias",
    "self_attn.q_norm.weight": "attention.q_norm.weight",
    "self_attn.k_norm.weight": "attention.k_norm.weight",
    "mlp.down_proj.weight": "feed_forward.down.weight",
    "mlp.down_proj.bias": "feed_forward.down.bias",
}
_FUSED = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "feed_forward.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}


def decoder_weights(tensors: Mapping[str, Tensor], prefix: str, layers: int) -> dict[str, Tensor]:
    """The state dict of `Decoder` from tensors named `prefix` + "layers.0.self_attn.q_proj.weight" and so on."""
    state = {"norm.weight": tensors[f"{prefix}norm.weight"]} if f"{prefix}norm.weight" in tensors else {}
    for index in range(layers):
        source, target = f"{prefix}layers.{index}.", f"layers.{index}."
        for theirs, ours in _PLAIN.items():
            if source + theirs in tensors:
                state[target + ours] = tensors[source + theirs]
        for ours, parts in _FUSED.items():
            for kind in ("weight", "bias"):
                found = [tensors[f"{source}{part}.{kind}"] for part in parts if f"{source}{part}.{kind}" in tensors]
                if len(found) == len(parts):
                    state[f"{target}{ours}.{kind}"] = torch.cat(found)
    return state


def load_strict(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load every parameter of `module`, or raise START_FAILED naming what is missing or left over."""
    try:
        result = module.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:  # Shapes that do not fit, with their names.
        raise StreamSynthError(ErrorCode.START_FAILED, f"{source}: {error}") from error
    if result.missing_keys or result.unexpected_keys:
        parts = [f"missing {', '.join(result.missing_keys[:5])}"] * bool(result.missing_keys)
        parts += [f"unknown {', '.join(result.unexpected_keys[:5])}"] * bool(result.unexpected_keys)
        raise StreamSynthError(ErrorCode.START_FAILED, f"{source}: {'; '.join(parts)}")


def load_llama(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LlamaModel:
    """Read `config.json`, `generation_config.json` if there is one, and safetensors in one file or in shards; blocking.

    Raises START_FAILED for names that do not fit, INVALID_VALUE for a model that is not built here.
    """
    config = json.loads((folder / "config.json").read_text())
    generation = folder / "generation_config.json"
    chosen = LlamaConfig.from_hf(config, json.loads(generation.read_text()) if generation.is_file() else None)
    return build_llama(chosen, read_tensors(folder), str(folder), dtype=dtype, device=device)


def build_llama(
    config: LlamaConfig,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> LlamaModel:
    """A model ready to run from tensors with the Hugging Face names; `source` is named in errors."""
    with torch.device("meta"):
        model = LlamaModel(config)
    model = model.to_empty(device=device).to(dtype)
    load_strict(model, llama_weights(tensors, config, source), source)
    model.requires_grad_(False).eval()
    model.get_ready()
    return model


def llama_weights(tensors: Mapping[str, Tensor], config: LlamaConfig, source: str) -> dict[str, Tensor]:
    """The state dict of `LlamaModel`; raises START_FAILED for a tensor that has no place in it."""
    names = _Read(tensors)
    state = {
        f"decoder.{name}": tensor for name, tensor in decoder_weights(names, "model.", config.decoder.layers).items()
    }
    for theirs, ours in (("model.embed_tokens.weight", "embedding.weight"), ("lm_head.weight", "head.weight")):
        if theirs in names:
            state[ours] = names[theirs]
    if config.tied and "head.weight" in state and torch.equal(state["head.weight"], state["embedding.weight"]):
        del state["head.weight"]  # A checkpoint may store what it ties twice.
    unknown = [name for name in tensors if name not in names.read and not name.endswith(_COMPUTED)]
    if unknown:
        raise StreamSynthError(ErrorCode.START_FAILED, f"{source}: unknown {', '.join(sorted(unknown)[:5])}")
    return state


_COMPUTED = ".rotary_emb.inv_freq"
"""Old checkpoints store this; it follows from the configuration."""


class _Read(Mapping[str, Tensor]):
    """Remembers what was read."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def read_tensors(folder: Path, stem: str = "model") -> dict[str, Tensor]:
    """All tensors of a folder; blocking. Raises START_FAILED for a file that is not there, or damaged."""
    tensors: dict[str, Tensor] = {}
    for path in checkpoint_files(folder, stem):
        with undamaged(path):
            tensors |= load_file(path)
    return tensors


def checkpoint_files(folder: Path, stem: str = "model") -> list[Path]:
    """`model.safetensors`, or the shards that its index names; raises START_FAILED if one is not there.

    `stem` is what the writer calls its tensors: transformers as above, diffusers "diffusion_pytorch_model".
    """
    index = folder / f"{stem}.safetensors.index.json"
    names = [f"{stem}.safetensors"]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    if lost := [name for name in names if not (folder / name).is_file()]:
        raise StreamSynthError(ErrorCode.START_FAILED, f"{folder}: no {', '.join(lost[:5])}")
    return [folder / name for name in names]
