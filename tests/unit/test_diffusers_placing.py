"""Pipelines whose blocks come and go, and whose linear layers have eight bits: without code for any of them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_pipelines.clips import FAMILIES, HEIGHT, WIDTH, make, options, request, save

from streamsynth.engine.quant.cache import QuantCache
from streamsynth.engine.quant.linear import Float8Linear
from streamsynth.errors import StreamSynthError
from streamsynth.models.diffusers.loading import load_clips, load_pipeline
from streamsynth.models.diffusers.placing import Placement, place
from streamsynth.video import VideoRequest

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("STREAMSYNTH_CACHE", str(tmp_path / "cache"))


def asked(name: str, seed: int = 7) -> VideoRequest:
    file = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (200, 30, 90)).save(file, "PNG")
    return request(name, seed=seed, picture=file.getvalue() if FAMILIES[name].picture else None)


@pytest.mark.parametrize("name", FAMILIES)
def test_offloaded_equals_resident_bit_for_bit(name: str, tmp_path: Path) -> None:
    folder = save(name, tmp_path)
    (resident,) = make(load_clips(**options(folder)), asked(name))
    engine = load_clips(**options(folder, offload=True))
    for _ in range(2):
        (offloaded,) = make(engine, asked(name))
        assert offloaded.error is None
        np.testing.assert_array_equal(offloaded.pictures, resident.pictures)
    engine.close()


def test_two_clips_at_once_do_not_get_into_each_other_s_blocks(tmp_path: Path) -> None:
    folder = save("wan", tmp_path)
    both = [asked("wan", seed) for seed in (1, 2)]
    alone = [make(load_clips(**options(folder)), each)[0] for each in both]
    engine = load_clips(**options(folder, offload=True, resident_blocks=1, max_requests=2))
    for made, expected in zip(make(engine, *both), alone, strict=True):
        np.testing.assert_array_equal(made.pictures, expected.pictures)
    engine.close()


def test_what_lies_on_the_host_is_what_is_said(tmp_path: Path) -> None:
    pipeline = load_pipeline(save("wan", tmp_path), dtype=torch.float32)
    offloaded = place(pipeline, Placement(offload=True, resident_blocks=1), torch.device("cpu"))
    kept = {type(each.module).__name__: {path.split(".")[1] for path in each.host_tensors()} for each in offloaded}
    assert kept["WanTransformer3DModel"] == {"1"}
    assert set(kept) == {"WanTransformer3DModel", "UMT5EncoderModel"}


@pytest.mark.parametrize("offload", [False, True])
def test_a_quantised_pipeline_makes_nearly_the_same_pictures_and_starts_from_the_cache_next_time(
    offload: bool, tmp_path: Path
) -> None:
    """To the same bytes: a hit is what a miss made."""
    folder = save("wan", tmp_path / "wan")
    cache = QuantCache(tmp_path / "cache" / "quantised")
    (exact,) = make(load_clips(**options(folder)), asked("wan"))
    made = []
    for _ in range(2):
        engine = load_clips(**options(folder, quantisation="fp8_per_tensor", offload=offload))
        made += make(engine, asked("wan"))
        engine.close()
        assert len(cache.entries()) == 1
    difference = np.abs(made[0].pictures.astype(int) - exact.pictures.astype(int))
    assert difference.max() > 0
    assert difference.mean() < 4
    np.testing.assert_array_equal(made[0].pictures, made[1].pictures)


def test_layers_that_are_ignored_keep_their_bits(tmp_path: Path) -> None:
    placement = Placement(quantisation="fp8_per_tensor", ignored_layers=["blocks.0.*"])
    pipeline = load_pipeline(save("wan", tmp_path / "wan"), dtype=torch.float32, recipe=placement.recipe)
    blocks = pipeline.transformer.blocks
    quantised = [any(isinstance(module, Float8Linear) for module in block.modules()) for block in blocks]
    assert quantised == [False, True]


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"resident_blocks": 1}, "resident_blocks"),
        ({"quantisation": "int3"}, "quantisation"),
        ({"ignored_layers": ["*"]}, "ignored_layers"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(changed: dict[str, object], param: str, tmp_path: Path) -> None:
    with pytest.raises(StreamSynthError) as refused:
        load_clips(**options(tmp_path, **changed))
    assert refused.value.param == param
