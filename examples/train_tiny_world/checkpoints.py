"""Networks on disk: whole states to go on from, and what is published, in pieces that are easy to carry."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from train_tiny_world.networks import Sizes, as_settings

_LARGEST_PIECE = 15 * 2**20


def save_networks(folder: Path, networks: dict[str, nn.Module], *, name: str) -> list[Path]:
    """float16 safetensors `name-1.safetensors` and so on, none above 15 MiB; tensors are "network.parameter"."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-*.safetensors"):
        old.unlink()
    pieces: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for network, module in networks.items():
        for key, value in module.state_dict().items():
            half = value.detach().half().cpu().contiguous()
            if size + half.nbytes > _LARGEST_PIECE and pieces[-1]:
                pieces.append({})
                size = 0
            pieces[-1][f"{network}.{key}"] = half
            size += half.nbytes
    files = [folder / f"{name}-{index}.safetensors" for index in range(1, len(pieces) + 1)]
    for file, piece in zip(files, pieces, strict=True):
        save_file(piece, file)
    return files


def load_networks(folder: Path, networks: dict[str, nn.Module], *, name: str) -> bool:
    """Whether there was something to load; a network of which there is nothing stays as it is.

    Raises RuntimeError for tensors that do not fit.
    """
    files = sorted(folder.glob(f"{name}-*.safetensors"))
    tensors = {key: value for file in files for key, value in load_file(file).items()}
    if not tensors:
        return False
    for network, module in networks.items():
        prefix = f"{network}."
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if own:
            module.load_state_dict(own)
    return True


def save_sizes(folder: Path, sizes: Sizes, extra: dict[str, object]) -> None:
    """`config.json`: the settings of all networks, and how they are sampled."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {part: as_settings(getattr(sizes, part)) for part in ("vae", "text", "transformer")}
    (folder / "config.json").write_text(json.dumps(settings | extra, indent=1) + "\n")
