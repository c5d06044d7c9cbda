"""Step skipping on a pipeline's denoiser, by what diffusers itself knows of its blocks."""

from __future__ import annotations

from typing import Any

from torch import nn

from streamsynth.engine.diffusion.skipping.blocks import BlockShape, StepSkipper
from streamsynth.engine.diffusion.skipping.policies import SkipPolicy
from streamsynth.errors import invalid_value


def hook_blocks(pipeline: Any, policy: SkipPolicy, capacity: int) -> StepSkipper:
    """Raises INVALID_VALUE where steps cannot be skipped: by requests that share passes, by two denoisers in turn, by a
    denoiser that is no stack of blocks."""
    if capacity > 1:
        raise invalid_value("max_requests", capacity, "1 where steps are skipped: each request skips its own")
    if getattr(pipeline, "transformer_2", None) is not None:
        raise invalid_value("step_skipping", type(pipeline).__name__, "used with a pipeline of one denoiser")
    model = getattr(pipeline, "transformer", None)
    if model is None:
        raise invalid_value("step_skipping", type(pipeline).__name__, "used with a transformer")
    return StepSkipper(model, policy, _shape_of)


def _shape_of(block: nn.Module) -> BlockShape:
    from diffusers.hooks._helpers import TransformerBlockRegistry

    get: Any = TransformerBlockRegistry.get
    try:
        known = get(type(block))
    except ValueError:
        return BlockShape()
    return BlockShape(
        hidden_name=known.hidden_states_argument_name,
        encoder_name=known.encoder_hidden_states_argument_name,
        hidden=known.return_hidden_states_index,
        encoder=known.return_encoder_hidden_states_index or 0,
    )
