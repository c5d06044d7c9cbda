"""A folder in diffusers' layout, loaded by what its `model_index.json` names. Nothing comes from the network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from streamsynth import environment
from streamsynth.engine.diffusion.attention import parse_attention
from streamsynth.engine.diffusion.engine import ClipEngine
from streamsynth.engine.diffusion.rehearsal import rehearsed_engine
from streamsynth.engine.diffusion.skipping.policies import parse_policy
from streamsynth.engine.parallel.layout import Layout
from streamsynth.engine.parallel.seat import Follower, FollowingSeat, LeadingSeat
from streamsynth.engine.quant.cache import QuantCache
from streamsynth.engine.quant.load import load_quantised
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.models.diffusers.abilities import Bounds
from streamsynth.models.diffusers.attending import set_backends
from streamsynth.models.diffusers.component import component_source, whole_files
from streamsynth.models.diffusers.model import PipelineModel
from streamsynth.models.diffusers.placing import DENOISERS, Placement, place
from streamsynth.models.diffusers.proving import prove_together
from streamsynth.models.diffusers.ranked import Agreed, open_ranked
from streamsynth.video import Size

DTYPES = ("bfloat16", "float16", "float32")
_NO_VOCABULARIES = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


def load_clips(
    *,
    folder: str,
    device: str,
    dtype: str,
    sizes: Sequence[str],
    max_steps: int,
    max_requests: int,
    offload: bool = False,
    resident_blocks: int = 0,
    sharing: Literal["auto", "sharded", "local"] = "auto",
    data_parallel_size: int | None = None,
    ulysses_degree: int = 1,
    quantisation: str = "none",
    ignored_layers: Sequence[str] = (),
    step_skipping: Mapping[str, Any] | None = None,
    attention: Mapping[str, Any] | None = None,
    autoencoder_dtype: str | None = None,
    max_frames: int | None = None,
    fps: int | None = None,
    seat: LeadingSeat | FollowingSeat | None = None,
) -> ClipEngine | Follower:
    """An engine that has made the folder's largest clip once; with a `seat` of several ranks, its part on every one but
    the first. Raises INVALID_VALUE for an option, and START_FAILED for a folder that is none, code that it would bring
    along, or a pipeline that no request can serve."""
    _check(dtype, autoencoder_dtype, max_requests=max_requests, max_steps=max_steps, max_frames=max_frames, fps=fps)
    bounds = Bounds(
        sizes=tuple(_parse_size(size) for size in sizes), fps=fps, max_frames=max_frames, max_steps=max_steps
    )
    placement = Placement(
        offload=offload,
        resident_blocks=resident_blocks,
        sharing=sharing,
        quantisation=quantisation,
        ignored_layers=ignored_layers,
    )
    skipping, backends = parse_policy(step_skipping or {}), parse_attention(attention or {})
    ranks = 1 if seat is None else seat.size
    layout = Layout.infer(ranks, ulysses_degree=ulysses_degree, data_parallel_size=data_parallel_size)
    if ranks > 1 and max_requests > 1:
        raise invalid_value("max_requests", max_requests, "1 where there are several ranks: each makes one")
    if ulysses_degree > 1 and step_skipping:
        raise invalid_value("step_skipping", dict(step_skipping), "empty where ulysses_degree is above 1")
    on = torch.device(device)

    def load(agreed: Agreed = alone, builds: bool = True) -> Any:
        kinds = getattr(torch, dtype), None if autoencoder_dtype is None else getattr(torch, autoencoder_dtype)
        pipeline = load_pipeline(
            Path(folder),
            dtype=kinds[0],
            autoencoder_dtype=kinds[1],
            recipe=placement.recipe,
            device=device,
            agreed=agreed,
            builds=builds,
            stay=not placement.offload,
        )
        set_backends(pipeline, backends)
        return pipeline

    def serve(pipeline: Any) -> PipelineModel:
        return PipelineModel(pipeline, bounds, device=on, capacity=max_requests, skipping=skipping)

    if seat is not None:
        return open_ranked(seat, layout, placement, on, load, serve)
    pipeline = load()
    place(pipeline, placement, on)
    model = serve(pipeline)
    engine = rehearsed_engine(model)
    prove_together(model)
    return engine


def alone(hit: bool) -> bool:
    """What the only rank has, all of them have."""
    return hit


def _check(dtype: str, autoencoder_dtype: str | None, **counts: int | None) -> None:
    for name, kind in (("dtype", dtype), ("autoencoder_dtype", autoencoder_dtype)):
        if kind is not None and kind not in DTYPES:
            raise invalid_value(name, kind, "one of " + ", ".join(DTYPES))
    for name, value in counts.items():
        if value is not None and not 1 <= value <= 10_000:
            raise invalid_value(name, value, "a whole number from 1 to 10000")


def load_pipeline(
    folder: Path,
    *,
    dtype: torch.dtype,
    autoencoder_dtype: torch.dtype | None = None,
    recipe: Recipe | None = None,
    device: str = "cpu",
    agreed: Agreed = alone,
    builds: bool = True,
    stay: bool = False,
) -> Any:
    """The pipeline on the CPU, with weights from safetensors alone. With a `recipe` its denoisers are quantised, on
    `device`, or taken from the cache of quantised weights, which a first load fills. `agreed`, `builds`, `stay`: as
    `load_quantised`."""
    import diffusers

    path = folder / "model_index.json"
    try:
        index = json.loads(path.read_text())
        named = index.get("_class_name")
    except (OSError, ValueError, AttributeError):
        raise invalid_value("folder", str(folder), "a folder in diffusers' layout, with a model_index.json") from None
    if not isinstance(named, str):
        message = f"{path} names code of its own; only pipelines that diffusers has are loaded"
        raise StreamSynthError(ErrorCode.START_FAILED, message, param="folder")
    # By its own class: the general one does not know which parts are optional, and would load again what it is given.
    kind: Any = getattr(diffusers, named, None)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.DiffusionPipeline)):
        message = f"{path} names {named}, a pipeline that diffusers {diffusers.__version__} does not have"
        raise StreamSynthError(ErrorCode.START_FAILED, message, param="folder")
    denoisers = [name for name in DENOISERS if (index.get(name) or [None])[0] is not None]
    cache = QuantCache(environment.cache_folder() / "quantised")
    parts = (
        {}
        if recipe is None
        else {
            name: load_quantised(
                component_source(folder, name, dtype), recipe, cache, device, agreed=agreed, builds=builds, stay=stay
            ).module
            for name in denoisers
        }
    )
    load: Any = kind.from_pretrained
    kinds = {"default": dtype, **({} if autoencoder_dtype is None else {"vae": autoencoder_dtype})}
    with whole_files(folder, "folder"):
        pipeline = load(str(folder), dtype=kinds, local_files_only=True, use_safetensors=True, **parts)
    _check_vocabularies(folder, pipeline)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _check_vocabularies(folder: Path, pipeline: Any) -> None:
    """A tokenizer whose files are not there loads all the same, and knows no word. Bytes alone need no vocabulary."""
    for name, part in pipeline.components.items():
        if not getattr(part, "vocab_files_names", None):
            continue
        files = {path.name for path in (folder / name).glob("*") if path.is_file()}
        if not files - _NO_VOCABULARIES:
            message = f"{folder / name} has no vocabulary: the folder is not whole"
            raise StreamSynthError(ErrorCode.START_FAILED, message, param="folder")


def _parse_size(text: str) -> Size:
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise invalid_value("sizes", text, 'a list of sizes like "832x480"')
    return Size(width=int(found[1]), height=int(found[2]))
