"""A pipeline on several ranks: loaded by each, its blocks shared, and led by the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from streamsynth.engine.diffusion.engine import ClipEngine
from streamsynth.engine.diffusion.ranked import LeadingModel, RankedFollower, RankedModel
from streamsynth.engine.diffusion.rehearsal import rehearsed_engine
from streamsynth.engine.offload.turns import Turns
from streamsynth.engine.parallel.group import join
from streamsynth.engine.parallel.layout import Layout
from streamsynth.engine.parallel.seat import FollowingSeat, LeadingSeat
from streamsynth.models.diffusers.model import PipelineModel
from streamsynth.models.diffusers.placing import Placement, place_shared
from streamsynth.models.diffusers.sequence import check_sequence, divide_sequence

Agreed = Callable[[bool], bool]


def open_ranked(
    seat: LeadingSeat | FollowingSeat,
    layout: Layout,
    placement: Placement,
    device: torch.device,
    load: Callable[[Agreed, bool], Any],
    serve: Callable[[Any], PipelineModel],
) -> ClipEngine | RankedFollower:
    """Called by all ranks at the same time. `load` gets whether all ranks have what one has, and whether this one
    builds what is missing; `serve` makes a model of the pipeline. Every rank raises if one of them does."""
    group = join(seat, layout, device)
    ranks = group.ranks

    def loaded() -> Any:
        pipeline = load(ranks.all_true, seat.rank == 0)
        check_sequence(pipeline, layout)
        return pipeline

    pipeline = ranks.agreed(loaded)
    shared = place_shared(pipeline, placement, device, group.sharing)
    turns = Turns(ranks, [(each.offloaded.module, each.waves) for each in shared if each.waves is not None])
    divide_sequence(pipeline, layout, device)
    ranked = RankedModel(ranks.agreed(lambda: serve(pipeline)), group, turns)
    if isinstance(seat, FollowingSeat):
        return RankedFollower(seat, ranked)
    return rehearsed_engine(LeadingModel(seat, ranked))
