"""A small network saved as a checkpoint, and how the cache of quantised weights loads it."""

from __future__ import annotations

from pathlib import Path

import torch
from offload_models import Network, network
from safetensors.torch import save_file

from streamsynth.engine.mapped import load_weights, parameters_on_meta
from streamsynth.engine.quant.load import Source
from streamsynth.engine.quant.recipe import Recipe

RECIPE = Recipe(ignored=("first", "last"))


def save(folder: Path, seed: int = 0) -> None:
    """In two files, in bfloat16 but for the norms."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: tensor.clone() if "norm" in name else tensor.bfloat16()
        for name, tensor in network(seed=seed).state_dict().items()
    }
    names = sorted(state)
    save_file({name: state[name] for name in names[:9]}, folder / "a.safetensors")
    save_file({name: state[name] for name in names[9:]}, folder / "b.safetensors")


def empty() -> Network:
    with parameters_on_meta():
        return network()


def source(folder: Path) -> Source:
    files = sorted(folder.glob("*.safetensors"))

    def full() -> Network:
        model = empty()
        load_weights(model, files)
        return model.eval()

    return Source("transformer", folder, files, full, empty)


def run(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        hidden = torch.randn(3, 33, generator=torch.Generator().manual_seed(5))
        for block in model.blocks:  # type: ignore[union-attr]  # a module list
            normed = block.norm(hidden)
            hidden = hidden + block.down(block.up(normed.bfloat16())).float()
        return hidden
