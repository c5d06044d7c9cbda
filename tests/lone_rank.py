"""The engine of a diffusers stage on which some clips fail, on some ranks: which ones, says the seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from streamsynth.engine.diffusion.clip import Clip
from streamsynth.models.diffusers import loading
from streamsynth.models.diffusers.model import PipelineModel
from streamsynth.video import VideoRequest

IN_PASS = {1000: (0,), 1001: (1,), 1002: (0, 1)}
"""In the second block of the second pass."""

BEFORE = {1003: (1,), 1004: (0, 1)}
"""While the prompt is read."""

ENGINE = "lone_rank:load_clips"
FAILING_AT_START = "lone_rank:load_clips_once"
_SECOND_PASS = 4


def load_clips_once(**options: Any) -> Any:
    """Rank 1 fails in the clip that is made at the start, whose seed is 0."""
    IN_PASS[0] = (1,)
    return load_clips(**options)


def load_clips(**options: Any) -> Any:
    rank = options["seat"].rank
    blocks = 0
    seed: int | None = None
    begin = PipelineModel.begin

    def beginning(self: PipelineModel, request: VideoRequest) -> Clip:
        nonlocal blocks, seed
        blocks, seed = 0, request.seed
        return begin(self, request)

    def entering(module: nn.Module, _: Any) -> None:
        nonlocal blocks
        name = type(module).__name__
        blocks += name == "WanTransformerBlock"
        if name == "WanTransformerBlock" and blocks == _SECOND_PASS and rank in IN_PASS.get(seed or 0, ()):
            raise RuntimeError("a kernel failed")
        if name == "UMT5EncoderModel" and rank in BEFORE.get(seed or 0, ()):
            raise RuntimeError("no text")

    PipelineModel.begin = beginning  # type: ignore[method-assign,assignment]  # of this process alone
    torch.nn.modules.module.register_module_forward_pre_hook(entering)
    return loading.load_clips(**options)
