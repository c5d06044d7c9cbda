"""Which pipelines two ranks can divide the sequence of: those that diffusers has a plan for, where the plan works."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from over_ranks import Asked, alone, started
from PIL import Image
from small_pipelines.clips import FAMILIES, HEIGHT, WIDTH, save

from streamsynth.errors import ErrorCode, StreamSynthError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["wan-image-to-video", "flux", "qwen-image"])
async def test_two_ranks_make_nearly_what_the_pipeline_makes_alone(family: str, tmp_path: Path) -> None:
    """Only rounding may differ. Wan's text-to-video: test_ranks_sequence.py."""
    folder = save(family, tmp_path)
    file = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (200, 40, 90)).save(file, "PNG")
    begins = {"picture": file.getvalue()} if FAMILIES[family].picture else {}
    async with started(folder, ulysses_degree="2") as runtime:
        for seed in (1, 2):
            asked = Asked(runtime, family, seed=seed, **begins)
            assert np.abs((await asked.made()).astype(int) - alone(folder, asked.request, family)).max() <= 1


async def test_a_plan_that_does_not_work_is_found_at_the_start_and_refused_by_name(tmp_path: Path) -> None:
    """LTX's masks, in diffusers 0.42.1: no client meets it."""
    folder = save("ltx", tmp_path)
    with pytest.raises(StreamSynthError, match="LTXPipeline made no clip with ulysses_degree 2: ") as refused:
        async with started(folder, ulysses_degree="2"):
            pass
    assert refused.value.code is ErrorCode.START_FAILED
