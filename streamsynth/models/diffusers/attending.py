"""Attention back-ends of a pipeline's denoisers, by the roles of their attentions. diffusers has the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from streamsynth.engine.diffusion.attention import AttentionConfig
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.models.diffusers.placing import DENOISERS

_NAMES = {
    "sdpa": "native",
    "cudnn": "_native_cudnn",
    "flex": "flex",
    "flash": "flash",
    "flash3": "_flash_3",
    "sage": "sage",
}


class Attending(NamedTuple):
    """One attention of a denoiser: `role` is its own name there."""

    role: str
    category: str
    processor: Any


def set_backends(pipeline: Any, config: AttentionConfig) -> None:
    """Raises INVALID_VALUE for a role that no attention has, START_FAILED for a back-end that is not installed."""
    if config == AttentionConfig():
        return
    found = [each for name in DENOISERS for each in attentions(getattr(pipeline, name, None))]
    if not found:
        raise invalid_value("attention", type(pipeline).__name__, "used with a denoiser whose attention can be chosen")
    config.check_roles(each.role for each in found)
    for each in found:
        chosen = config.select(each.role, each.category)
        if chosen is not None:
            each.processor._attention_backend = _backend(chosen)


def attentions(model: nn.Module | None) -> Iterator[Attending]:
    """Those whose back-end can be chosen, in the order of the model."""
    for path, module in [] if model is None else model.named_modules():
        processor = getattr(module, "processor", None)
        if hasattr(processor, "_attention_backend"):
            role = path.rpartition(".")[2]
            yield Attending(role, _category(role, module), processor)


def _category(role: str, module: nn.Module) -> str:
    """`cross`: keys are of another sequence; `joint`: of both; else `self`. Not every class says so: diffusers then
    calls the second attention of a block `attn2`."""
    if getattr(module, "is_cross_attention", False) or role == "attn2" or "cross" in role or "_to_" in role:
        return "cross"
    return "joint" if getattr(module, "added_kv_proj_dim", None) is not None else "self"


def _backend(name: str) -> Any:
    from diffusers.models import attention_dispatch

    backend = attention_dispatch.AttentionBackendName(_NAMES[name])
    check: Any = attention_dispatch._check_attention_backend_requirements
    try:
        check(backend)
    except RuntimeError as error:
        raise StreamSynthError(ErrorCode.START_FAILED, f"attention {name}: {error}", param="attention") from None
    return backend
