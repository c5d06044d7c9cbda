"""The cache of quantised weights: what makes it hit, and that a hit gives the bytes of a miss."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from offload_models import Network
from quant_source import RECIPE, run, save, source
from safetensors import safe_open
from torch import nn

from streamsynth.engine.offload.offloaded import offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.quant.cache import QuantCache
from streamsynth.engine.quant.load import Loaded, load_quantised
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.errors import StreamSynthError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def cache(tmp_path: Path) -> QuantCache:
    return QuantCache(tmp_path / "cache")


def load(folder: Path, cache: QuantCache | None, recipe: Recipe = RECIPE) -> Loaded:
    return load_quantised(source(folder), recipe, cache)


def state(module: nn.Module) -> dict[str, bytes]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {
        name: repr((each.dtype, each.shape, each.stride())).encode() + each.detach().view(torch.uint8).numpy().tobytes()
        for name, each in named
    }


def test_a_hit_gives_the_bytes_of_the_miss_and_of_no_cache(folder: Path, cache: QuantCache) -> None:
    """T5.12, FP8-10: non-persistent buffers too."""
    without, miss, hit = load(folder, None), load(folder, cache), load(folder, cache)
    assert (without.hit, miss.hit, hit.hit) == (False, False, True)
    assert (miss.fault, hit.fault) == (None, None)
    assert state(without.module) == state(miss.module) == state(hit.module)
    assert without.quantised == miss.quantised == hit.quantised
    assert torch.equal(run(hit.module), run(without.module))
    assert not hit.module.training


@pytest.mark.parametrize("host", ["pinned", "in_place"])
def test_a_hit_offloads_from_the_mapped_files(folder: Path, cache: QuantCache, host: str) -> None:
    """DL-10 does not bind: what is quantised and cached can be mapped."""
    load(folder, cache)
    hit = load(folder, cache).module
    expected = run(hit)
    offloaded = offload_blocks(hit, OffloadOptions(host=host))  # type: ignore[arg-type]
    found = offloaded.host_tensors()
    assert found["blocks.2.up.weight_bytes"].dtype is torch.int8
    offloaded.close()
    assert torch.equal(run(hit), expected)


def test_other_programs_can_read_what_is_kept(folder: Path, cache: QuantCache) -> None:
    """V65, FP8-4: plain float8 tensors and float32 scales, under their usual names."""
    made = load(folder, cache).module
    (entry,) = cache.entries()
    with safe_open(entry.folder / "tensors-00000.safetensors", "pt") as file:
        weight, scale = file.get_tensor("blocks.1.up.weight"), file.get_tensor("blocks.1.up.weight_scale")
        assert file.get_tensor("first.weight").dtype is torch.bfloat16
    assert (weight.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert torch.equal(weight.view(torch.int8), made.blocks[1].up.weight_bytes)  # type: ignore[union-attr,index]


def test_tied_weights_stay_tied(folder: Path, cache: QuantCache) -> None:
    def tied(model: nn.Module) -> nn.Module:
        assert isinstance(model, Network)
        model.blocks[1].norm = model.blocks[0].norm
        model.blocks[3].norm.bias = model.blocks[2].norm.bias
        return model

    plain = source(folder)
    tying = replace(plain, full=lambda: tied(plain.full()), empty=lambda: tied(plain.empty()))
    miss, hit = (load_quantised(tying, RECIPE, cache) for _ in range(2))
    assert hit.hit
    assert state(hit.module) == state(miss.module)
    assert isinstance(hit.module, Network)
    assert hit.module.blocks[3].norm.bias is hit.module.blocks[2].norm.bias


def test_what_decides_the_bytes_decides_the_hit(folder: Path, cache: QuantCache, tmp_path: Path) -> None:
    """V63, T5.2, FP8-1: the content, the recipe and the component; not times, not the place."""
    load(folder, cache)
    os.utime(folder / "a.safetensors", (1, 1))
    assert load(folder, cache).hit
    shutil.copytree(folder, tmp_path / "copy")
    assert load(tmp_path / "copy", cache).hit
    assert not load(folder, cache, Recipe(ignored=("first",))).hit
    assert load(folder, cache).hit
    for other in (replace(source(folder), component="transformer_2"), replace(source(folder), variant="float16")):
        assert not load_quantised(other, RECIPE, cache).hit
        assert load_quantised(other, RECIPE, cache).hit
    assert len(cache.entries()) == 4


def test_a_source_that_changed_misses_and_its_old_artifact_goes(folder: Path, cache: QuantCache) -> None:
    load(folder, cache)
    load(folder, cache, Recipe(ignored=("first",)))
    before = {entry.folder.name for entry in cache.entries()}
    save(folder, seed=1)
    changed = load(folder, cache)
    assert not changed.hit
    assert changed.fault is None
    after = {entry.folder.name for entry in cache.entries()}
    assert len(after) == 2
    assert len(after & before) == 1
    assert state(load(folder, cache).module) == state(load(folder, None).module)


def test_a_change_that_keeps_a_files_size_and_time_is_found_by_verifying(folder: Path, cache: QuantCache) -> None:
    load(folder, cache)
    path = folder / "b.safetensors"
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert load(folder, cache).hit, "the memory of digests goes by size and time"
    (entry,) = cache.entries()
    assert cache.verify(entry) == f"its source {path} has changed"
    assert not load(folder, cache).hit, "verifying has read it anew"


def test_an_intact_artifact_verifies_also_without_its_source(folder: Path, cache: QuantCache) -> None:
    load(folder, cache)
    (entry,) = cache.entries()
    assert cache.verify(entry) is None
    shutil.rmtree(folder)
    assert cache.verify(entry) is None


def test_removing_an_entry_leaves_nothing(folder: Path, cache: QuantCache) -> None:
    load(folder, cache)
    (entry,) = cache.entries()
    cache.remove(entry)
    assert cache.entries() == []
    assert not [each for each in cache.root.iterdir() if each.name.startswith(".being")]
    cache.remove(entry)


def test_a_model_that_lacks_what_is_kept_is_loaded_as_always(folder: Path, cache: QuantCache) -> None:
    load(folder, cache)
    plain = source(folder)

    def other() -> nn.Module:
        model = plain.empty()
        model.register_buffer("more", torch.zeros(1))
        return model

    made = load_quantised(replace(plain, empty=other), RECIPE, cache)
    assert not made.hit
    assert "more" in str(made.fault)
    assert state(made.module) == state(load(folder, None).module)
    grown = replace(plain, full=lambda: other_full(plain.full()), empty=other)
    assert "more" in str(load_quantised(grown, RECIPE, cache).fault)
    assert load_quantised(grown, RECIPE, cache).hit, "what another version of the code made is replaced"


def other_full(model: nn.Module) -> nn.Module:
    model.register_buffer("more", torch.zeros(1))
    return model


def test_ranks_take_the_way_that_all_of_them_can(folder: Path, cache: QuantCache) -> None:
    """One rank without the artifact makes all of them load as always, and only one of them builds."""
    missed = load_quantised(source(folder), RECIPE, cache, builds=False)
    assert not missed.hit
    assert cache.entries() == []
    load(folder, cache)
    asked: list[bool] = []

    def somebody_has_not(hit: bool) -> bool:
        asked.append(hit)
        return False

    made = load_quantised(source(folder), RECIPE, cache, agreed=somebody_has_not, builds=False)
    assert (made.hit, asked) == (False, [True])
    assert state(made.module) == state(load(folder, cache).module)


def test_names_that_are_no_component_are_refused(folder: Path, cache: QuantCache) -> None:
    for name in ("", "../up", "Transformer", "a/b"):
        with pytest.raises(StreamSynthError, match="component is"):
            cache.identify(name, RECIPE, folder, list(folder.iterdir()))
    with pytest.raises(StreamSynthError, match="a folder with files to load"):
        cache.identify("transformer", RECIPE, folder, [])


def test_the_manifest_says_what_it_was_made_from(folder: Path, cache: QuantCache) -> None:
    load(folder, cache)
    (entry,) = cache.entries()
    said = json.loads((entry.folder / "manifest.json").read_text())
    assert (said["component"], said["origin"], said["layout"]) == ("transformer", str(folder), "whole")
    assert [name for name, _ in said["source"]] == ["a.safetensors", "b.safetensors"]
    assert said["layers"][:2] == ["blocks.0.up", "blocks.0.down"]
