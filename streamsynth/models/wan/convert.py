"""A released or trained `.pt` file to a folder that loads: read once, as tensors alone, and written as safetensors."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from streamsynth.engine.mapped import undamaged
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.original_names import Part, part_of, renamed
from streamsynth.models.wan.original_sizes import text_encoder_sizes, transformer_sizes, vae_sizes
from streamsynth.models.wan.prompts import text_encoder_weights
from streamsynth.models.wan.text_encoder import TextEncoder
from streamsynth.models.wan.tiny_vae import TinyVae
from streamsynth.models.wan.tiny_vae_weights import tiny_vae_config, tiny_vae_weights
from streamsynth.models.wan.vae import WanVae
from streamsynth.models.wan.vae_weights import vae_weights
from streamsynth.models.wan.weights import DIFFUSERS_STEM, transformer_weights

WRAPPERS = ("generator_ema", "generator", "state_dict", "model")
"""Under which of these names training scripts put the weights; the first that a file has is taken."""

_PREFIXES = ("model.diffusion_model.", "model.", "module.")
_WRAPPED = re.compile(r"_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|_orig_mod\.")
_CLASSES = {
    Part.TRANSFORMER: "WanTransformer3DModel",
    Part.VAE: "AutoencoderKLWan",
    Part.TEXT_ENCODER: "UMT5EncoderModel",
    Part.TINY_VAE: "TinyVae",
}


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written: which part, how many tensors of how many bytes, and the wrapper they were found in."""

    part: Part
    tensors: int
    nbytes: int
    wrapper: str | None


def convert(source: Path, folder: Path, *, weights: str | None = None, head_dim: int = 128) -> Converted:
    """Write `config.json` and safetensors for `load_transformer` and the like; blocking. Dtypes stay.

    `weights` is the wrapper to take where a file has several. Raises INVALID_VALUE or START_FAILED, and writes nothing,
    for a file that is not there or not one of Wan's, names without a place, and a folder that is there already.
    """
    if folder.exists():
        raise invalid_value("output", str(folder), "a folder that is not there yet")
    found, wrapper = _unwrapped(_read(source), weights, str(source))
    tensors = _unprefixed(found)
    part = part_of(tensors, str(source))
    config, stem, named, model = _described(part, tensors, head_dim)
    _check(model, part, named, str(source))
    unfinished = folder.with_name(folder.name + ".unfinished")
    unfinished.mkdir(parents=True)
    try:
        written = {name: tensor.contiguous() for name, tensor in named.items()}
        save_file(written, unfinished / f"{stem}.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps({"_class_name": _CLASSES[part], **config}, indent=2))
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    return Converted(part, len(named), sum(tensor.nbytes for tensor in named.values()), wrapper)


def _read(source: Path) -> Mapping[str, Any]:
    if not source.is_file():
        raise invalid_value("file", str(source), "a file that is there")
    if source.suffix == ".safetensors":
        with undamaged(source):
            return load_file(source)
    try:
        read = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        message = f"{source}: cannot be read as tensors alone: {str(error).splitlines()[0]}"
        raise StreamSynthError(ErrorCode.START_FAILED, message) from error
    if not isinstance(read, Mapping):
        raise StreamSynthError(ErrorCode.START_FAILED, f"{source}: holds a {type(read).__name__}, not named tensors")
    return read


def _unwrapped(read: Mapping[str, Any], weights: str | None, source: str) -> tuple[dict[str, Tensor], str | None]:
    """The tensors, and the name they were under if there was one."""
    wrappers = [name for name, value in read.items() if isinstance(value, Mapping)]
    if weights is not None and weights not in wrappers:
        raise invalid_value("weights", weights, f"one that the file has: {', '.join(wrappers) or 'it has none'}")
    chosen = weights or next((name for name in WRAPPERS if name in wrappers), None)
    if chosen is None and wrappers and not any(isinstance(value, Tensor) for value in read.values()):
        limit = f"given, as none is known of {', '.join(wrappers)}"
        raise invalid_value("weights", None, limit)
    content = read if chosen is None else read[chosen]
    others = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if others:
        message = f"{source}: {', '.join(others[:5])} are no tensors"
        raise StreamSynthError(ErrorCode.START_FAILED, message)
    return dict(content), chosen


def _unprefixed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what training wraps modules in, and prefixes that all names share."""
    plain = {_WRAPPED.sub("", name): tensor for name, tensor in tensors.items()}
    for prefix in _PREFIXES:
        if plain and all(name.startswith(prefix) for name in plain):
            plain = {name.removeprefix(prefix): tensor for name, tensor in plain.items()}
    return plain


def _described(
    part: Part, tensors: Mapping[str, Tensor], head_dim: int
) -> tuple[dict[str, Any], str, dict[str, Tensor], nn.Module]:
    """The configuration, the stem of the file, the tensors as they are written, and the model without weights."""
    named = renamed(tensors, part)
    with torch.device("meta"):
        if part is Part.TRANSFORMER:
            transformer = transformer_sizes(tensors, head_dim)
            return asdict(transformer), DIFFUSERS_STEM, named, WanTransformer(transformer)
        if part is Part.VAE:
            vae = vae_sizes(tensors)
            return asdict(vae), DIFFUSERS_STEM, named, WanVae(vae)
        if part is Part.TEXT_ENCODER:
            encoder = text_encoder_sizes(tensors)
            return asdict(encoder), "model", named, TextEncoder(encoder)
        tiny = tiny_vae_config(tensors)
        return asdict(tiny), DIFFUSERS_STEM, tiny_vae_weights(tensors, tiny), TinyVae(tiny)


def _check(model: nn.Module, part: Part, named: Mapping[str, Tensor], source: str) -> None:
    """Raises START_FAILED unless every tensor has a place and every place a tensor; moves no data."""
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in named.items()}
    placed = shapes
    if isinstance(model, WanTransformer):
        placed = transformer_weights(shapes, model.config)
    elif isinstance(model, WanVae):
        placed = vae_weights(shapes, model.config)
    elif isinstance(model, TextEncoder):
        placed = text_encoder_weights(shapes, model.config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    given = {name: tensor.shape for name, tensor in placed.items()}
    wrong = sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name))
    if wrong:
        message = f"{source}: missing, unknown or of another shape in this {part}: {', '.join(wrong[:5])}"
        raise StreamSynthError(ErrorCode.START_FAILED, message)
