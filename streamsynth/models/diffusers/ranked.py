"""A pipeline on several ranks: loaded by each, its blocks shared, and led by the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from streamsynth.engine.diffusion.apart import ApartFollower, ApartModel
from streamsynth.engine.diffusion.engine import ClipEngine
from streamsynth.engine.diffusion.ranked import LeadingModel, RankedFollower, RankedModel
from streamsynth.engine.diffusion.rehearsal import rehearsed_engine
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.turns import Turns
from streamsynth.engine.parallel.group import join
from streamsynth.engine.parallel.layout import Layout
from streamsynth.engine.parallel.seat import Follower, FollowingSeat, LeadingSeat
from streamsynth.engine.parallel.together import Together
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.diffusers.model import PipelineModel
from streamsynth.models.diffusers.placing import Placement, place_shared
from streamsynth.models.diffusers.sequence import check_sequence, denoisers, divide_sequence

Agreed = Callable[[bool], bool]


def open_ranked(
    seat: LeadingSeat | FollowingSeat,
    layout: Layout,
    placement: Placement,
    device: torch.device,
    load: Callable[[Agreed, bool], Any],
    serve: Callable[[Any], PipelineModel],
) -> ClipEngine | Follower:
    """Called by all ranks at the same time. `load` gets whether all ranks have what one has, and whether this one
    builds what is missing; `serve` makes a model of the pipeline. Every rank raises if one of them does."""
    group = join(seat, layout, device)
    ranks = group.ranks

    def loaded() -> Any:
        pipeline = load(ranks.all_true, seat.rank == 0)
        check_sequence(pipeline, layout)
        return pipeline

    pipeline = ranks.agreed(loaded)
    shared = place_shared(pipeline, placement, device, group.sharing, ranks.all_true)
    together = None
    if group.sequence is not None:
        together = Together(seat, group.sequence, device)
        for denoiser in denoisers(pipeline):
            together.guard(denoiser)
    turns = Turns(ranks, [(each.offloaded.module, each.waves) for each in shared if each.waves is not None])
    divide_sequence(pipeline, layout, device)
    model = ranks.agreed(lambda: serve(pipeline))
    if layout.ulysses_degree == 1 and not turns.models:
        return _apart(seat, ranks, model)
    ranked = RankedModel(model, group, turns, together)
    if isinstance(seat, FollowingSeat):
        return RankedFollower(seat, ranked)
    try:
        return rehearsed_engine(LeadingModel(seat, ranked))
    except Exception as error:
        if layout.ulysses_degree == 1:
            raise
        said = error.message if isinstance(error, StreamSynthError) else f"{type(error).__name__}: {error}"
        message = f"{type(pipeline).__name__} made no clip with ulysses_degree {layout.ulysses_degree}: {said}"
        raise StreamSynthError(ErrorCode.START_FAILED, message, param="ulysses_degree") from error


def _apart(seat: LeadingSeat | FollowingSeat, ranks: Ranks, model: PipelineModel) -> ClipEngine | Follower:
    if isinstance(seat, FollowingSeat):
        return ApartFollower(seat, model, lambda pictures: ranks.send(pictures, 0))
    apart = ApartModel(seat, ranks, model)
    engine = rehearsed_engine(apart)
    apart.watched = True
    return engine
