"""One model of a folder in diffusers' layout, as the cache of quantised weights loads it: also without values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from streamsynth.engine.mapped import parameters_on_meta
from streamsynth.engine.quant.load import Source
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value


def component_source(folder: Path, component: str, dtype: torch.dtype) -> Source:
    """Of `folder`/`component`, with a class of diffusers' and safetensors. Raises INVALID_VALUE for anything else."""
    origin = folder / component
    kind = _class_of(origin)
    files = sorted(origin.glob("*.safetensors"))
    if not files:
        raise invalid_value("component", str(origin), "a folder with weights in safetensors")

    def full() -> nn.Module:
        with whole_files(origin, "component"):
            return kind.from_pretrained(str(origin), dtype=dtype, local_files_only=True, use_safetensors=True)

    def empty() -> nn.Module:
        # Tensors that are neither parameters nor buffers take the dtype that is the default when they are built.
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with parameters_on_meta():
                return kind.from_config(kind.load_config(str(origin), local_files_only=True))
        finally:
            torch.set_default_dtype(before)

    others = [path for path in sorted(origin.glob("*.json")) if path.is_file()]
    return Source(component, origin, [*files, *others], full, empty, f"{kind.__name__} {dtype}")


@contextmanager
def whole_files(folder: Path, param: str) -> Iterator[None]:
    """Around a load from the folder, by one thread: raises START_FAILED, naming it, where its files are not what
    diffusers wrote, or have not all of a model's weights."""
    try:
        with _nothing_drawn():
            yield
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, OSError) and error.strerror is not None:
            raise
        why = " ".join(str(error).split())
        message = f"{folder} cannot be loaded: its files are damaged or do not belong together: {why[:200]}"
        raise StreamSynthError(ErrorCode.START_FAILED, message, param=param) from error


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """What a file lacks, diffusers and transformers fill with random numbers, and warn: here it is a ValueError."""
    from diffusers import ModelMixin
    from transformers import PreTrainedModel

    with ExitStack() as patched:
        for kind in (ModelMixin, PreTrainedModel):
            before = kind.__dict__["from_pretrained"]
            patched.callback(setattr, kind, "from_pretrained", before)
            setattr(kind, "from_pretrained", classmethod(_refusing_gaps(before.__func__)))  # noqa: B010 - not for mypy
        yield


def _refusing_gaps(load: Callable[..., Any]) -> Callable[..., Any]:
    def whole(kind: type, *given: Any, output_loading_info: bool = False, **options: Any) -> Any:
        model, info = load(kind, *given, output_loading_info=True, **options)
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"{len(missing)} weights of {kind.__name__} are not there, among them {missing[0]}")
        return (model, info) if output_loading_info else model

    return whole


def _class_of(origin: Path) -> Any:
    import diffusers

    try:
        name = json.loads((origin / "config.json").read_text()).get("_class_name")
    except (OSError, ValueError, AttributeError):
        raise invalid_value("component", str(origin), "a folder with a config.json of diffusers'") from None
    kind = getattr(diffusers, name, None) if isinstance(name, str) and not name.startswith("_") else None
    if not (isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)):
        raise invalid_value("component", name, "a class of diffusers' models")
    return kind
