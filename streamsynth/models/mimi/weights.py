"""Reading a codec's tensors under their Hugging Face names, all of them or none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from streamsynth.engine.mapped import undamaged
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.mimi.config import MimiConfig
from streamsynth.models.mimi.layout import Shapes, tensor_shapes

Tensors = Mapping[str, Tensor]

DECODING = ("quantizer.", "upsample.", "decoder_transformer.", "decoder.")
ENCODING = ("encoder.", "encoder_transformer.", "downsample.", "quantizer.")


def frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.contiguous(), requires_grad=False)


def read_config(folder: Path) -> tuple[MimiConfig, str]:
    """The codec's configuration and the prefix of its tensors' names, also where it is part of a CSM checkpoint."""
    config = json.loads((folder / "config.json").read_text())
    if "codec_config" in config:
        return MimiConfig.from_hf(config["codec_config"]), "codec_model."
    return MimiConfig.from_hf(config), ""


def read_tensors(folder: Path, config: MimiConfig, parts: tuple[str, ...], *, prefix: str = "") -> dict[str, Tensor]:
    """The tensors whose names begin with one of `parts`, in float32 on the CPU; blocking.

    The whole file is checked, whatever is read of it: raises START_FAILED with the names that are missing, unknown or
    of another shape. Names outside of `prefix` belong to another model.
    """
    expected = tensor_shapes(config)
    found: Shapes = {}
    tensors: dict[str, Tensor] = {}
    for path in _files(folder):
        with undamaged(path), safe_open(path, framework="pt") as file:
            names = {name.removeprefix(prefix): name for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
            found |= {name: tuple(file.get_slice(stored).get_shape()) for name, stored in names.items()}
            wanted = [name for name in names if name.startswith(parts)]
            tensors |= {name: file.get_tensor(names[name]).float() for name in wanted}
    if faults := list(_faults(expected, found)):
        raise StreamSynthError(ErrorCode.START_FAILED, f"{folder}: {'; '.join(faults)}")
    return tensors


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def _faults(expected: Shapes, found: Shapes) -> Iterator[str]:
    shared = expected.keys() & found.keys()
    reshaped = {f"{name} {found[name]}, not {expected[name]}" for name in shared if found[name] != expected[name]}
    kinds = (("missing", expected.keys() - found.keys()), ("unknown", found.keys() - expected.keys()))
    for kind, names in (*kinds, ("of another shape", reshaped)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            yield f"{kind}: {', '.join(sorted(names)[:5])}{more}"


def random_tensors(config: MimiConfig, seed: int) -> dict[str, Tensor]:
    """A codec that has learnt nothing, for benches: activations keep their size from layer to layer."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator) for name, shape in tensor_shapes(config).items()}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith(("layernorm.weight", "cluster_usage", "initialized")):
        return torch.ones(shape)
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if name.endswith(".scale"):
        return torch.full(shape, 0.1)
    fan_in = 1 if name.endswith("embed_sum") else shape[0] if ".decoder" in name else torch.Size(shape[1:]).numel()
    return torch.randn(shape, generator=generator) * fan_in**-0.5
