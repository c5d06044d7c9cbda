"""Whether a model's requests can share a pass: tried once, because what its inputs mean is only guessed from shapes."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamsynth.engine.diffusion.rehearsal import clip_request, make_clips
from streamsynth.models.diffusers.model import PipelineModel

logger = logging.getLogger(__name__)

NEAR = 0.05
"""Of the difference between two seeds: what rounding may change. Rows that get mixed up change about all of it."""


def prove_together(model: PipelineModel) -> bool:
    """Make two small clips alone and together. If they are not the same but for rounding, passes stay apart."""
    denoisers = model.denoisers
    if denoisers is None:
        return False
    size = min(model.traits.sizes, key=lambda size: size.width * size.height)
    one = clip_request(model, size, min(model.traits.max_frames, 1 + model.traits.frame_step))
    both = [one, replace(one, seed=1)]
    alone = [make_clips(model, [each])[0].cpu().numpy() for each in both]
    together = [each.cpu().numpy() for each in make_clips(model, both)]
    apart = _difference(*alone)
    worst = max(_difference(*pair) for pair in zip(alone, together, strict=True))
    denoisers.together = denoisers.joined > 0 and worst <= max(0.5, NEAR * apart)
    if not denoisers.together:
        logger.warning(
            "requests do not share passes: together they differ by %.2f levels, two seeds by %.2f", worst, apart
        )
    return denoisers.together


def _difference(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    return float(np.abs(one.astype(np.int16) - other.astype(np.int16)).mean())
