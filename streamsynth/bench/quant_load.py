"""How long a model takes from the call that loads it until its quantised weights are on the device: made from its
checkpoint, and found in the cache; with their files on the disk alone, and in the page cache."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from streamsynth.bench.offload_sides import DitSizes, peak_bytes, random_dit, reset_peak, synchronize
from streamsynth.bench.report import Report, Row
from streamsynth.engine.quant.cache import QuantCache
from streamsynth.engine.quant.load import Source, load_quantised
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.models.diffusers.component import component_source

_FILE_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantLoad:
    """`folder` is written over: a random checkpoint and its cache, one and a half times its size together."""

    folder: Path
    sizes: DitSizes = field(default_factory=DitSizes)
    device: str = "cuda"
    threads: int = 1
    rounds: int = 2


def bench_quant_load(load: QuantLoad) -> Report:
    """Blocking. Removes what it wrote."""
    torch.set_num_threads(load.threads)
    try:
        _write(load)
        rows = list(_rows(load))
    finally:
        shutil.rmtree(load.folder, ignore_errors=True)
    return Report("quant-load", rows)


def _rows(load: QuantLoad) -> Iterator[Row]:
    source = component_source(load.folder, "transformer", torch.bfloat16)
    cache = QuantCache(load.folder / "cache")
    recipe = Recipe(ignored=("condition_embedder.*", "proj_out"))
    # The build that fills the cache is timed too: it is what a first start pays.
    first = _start(source, recipe, cache, load)
    (entry,) = cache.entries()
    cached = sorted(entry.folder.glob("*.safetensors"))
    cold = _best(lambda: _start(source, recipe, None, load), source.files, load)
    ways: dict[str, _Start] = {
        "from the checkpoint, on disk": cold,
        "from the checkpoint, in the page cache": _best(lambda: _start(source, recipe, None, load), (), load),
        "with the cache, on disk": _best(lambda: _start(source, recipe, cache, load), cached, load),
        "with the cache, in the page cache": _best(lambda: _start(source, recipe, cache, load), (), load),
        "from the checkpoint, filling the cache": first,
    }
    for name, found in ways.items():
        nbytes = sum(path.stat().st_size for path in (cached if found.hit else source.files))
        yield {
            "way": name,
            "hit": "yes" if found.hit else "no",
            "seconds": found.seconds,
            "of cold": found.seconds / cold.seconds,
            "file GB/s": nbytes / found.seconds / 1e9,
            "peak GB": found.peak_bytes / 1e9,
            "steady GB": found.steady_bytes / 1e9,
        }


@dataclass(frozen=True, slots=True)
class _Start:
    seconds: float
    hit: bool
    peak_bytes: int
    steady_bytes: int


def _best(start: Callable[[], _Start], dropped: Sequence[Path], load: QuantLoad) -> _Start:
    """Of a few, each with these files out of the page cache."""
    found: list[_Start] = []
    for _ in range(load.rounds):
        # A file that is still mapped stays in the page cache.
        gc.collect()
        for path in dropped:
            _drop(path)
        found.append(start())
    return min(found, key=lambda each: each.seconds)


def _start(source: Source, recipe: Recipe, cache: QuantCache | None, load: QuantLoad) -> _Start:
    device = torch.device(load.device)
    reset_peak(device)
    synchronize(device)
    began = time.perf_counter()
    loaded = load_quantised(source, recipe, cache, device, stay=True)
    loaded.module.to(device)
    synchronize(device)
    took = time.perf_counter() - began
    steady = sum(each.nbytes for each in (*loaded.module.parameters(), *loaded.module.buffers()))
    return _Start(took, loaded.hit, peak_bytes(device), steady)


def _write(load: QuantLoad) -> None:
    """A checkpoint as diffusers writes one, in several files."""
    model = random_dit(load.sizes, torch.bfloat16)
    folder = load.folder / "transformer"
    folder.mkdir(parents=True)
    model.save_config(folder)  # type: ignore[operator]  # diffusers' own
    part: dict[str, Tensor] = {}
    weight_map: dict[str, str] = {}
    parts: list[dict[str, Tensor]] = []
    for name, tensor in model.state_dict().items():
        if part and sum(each.nbytes for each in part.values()) + tensor.nbytes > _FILE_BYTES:
            parts.append(part)
            part = {}
        part[name] = tensor
    parts.append(part)
    for number, each in enumerate(parts, 1):
        file = f"diffusion_pytorch_model-{number:05}-of-{len(parts):05}.safetensors"
        save_file(each, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(each, file)
    index = {"metadata": {"total_size": sum(each.nbytes for each in model.parameters())}, "weight_map": weight_map}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))


def _drop(path: Path) -> None:
    """Out of the page cache, once it is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
