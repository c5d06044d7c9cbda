"""Requests that share the passes of a denoiser: the pictures of each are those that it makes alone."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_pipelines.clips import FAMILIES, HEIGHT, WIDTH, Made, make, options, request, save, step
from torch import Tensor, nn

from streamsynth.engine.diffusion.engine import ClipEngine
from streamsynth.models.diffusers.abilities import Bounds
from streamsynth.models.diffusers.joining import Call, joined, parted
from streamsynth.models.diffusers.loading import load_clips, load_pipeline
from streamsynth.models.diffusers.model import PipelineModel
from streamsynth.models.diffusers.proving import prove_together
from streamsynth.video import Size, VideoRequest

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

UNEQUAL_PROMPTS = {"qwen-image": 3}
"""Their length is their own: only the pass of the negative prompt is shared."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def asked(name: str, prompt: str, seed: int, **changed: Any) -> VideoRequest:
    file = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (200, 30, 90)).save(file, "PNG")
    picture = file.getvalue() if FAMILIES[name].picture else None
    return request(name, prompt, seed, picture=picture, **changed)


def assert_same(made: Made, expected: Made) -> None:
    """But for rounding, which a pass of more rows does differently."""
    assert made.error is None
    difference = np.abs(made.pictures.astype(int) - expected.pictures.astype(int))
    assert difference.max() <= 1


def joined_since(engine: ClipEngine, before: dict[str, int]) -> tuple[int, int]:
    now = engine.counters()
    return now["joined_passes"] - before["joined_passes"], now["passes"] - before["passes"]


@pytest.mark.parametrize("name", FAMILIES)
def test_two_requests_of_a_kind_share_every_pass(name: str, tmp_path: Path) -> None:
    """Other prompt, other seed, other guidance."""
    engine = load_clips(**options(save(name, tmp_path), max_requests=2))
    both = [asked(name, "a red fox", 1), asked(name, "the sea", 2, guidance=5.0)]
    alone = [make(engine, each)[0] for each in both]
    before = engine.counters()
    for made, expected in zip(make(engine, *both), alone, strict=True):
        assert_same(made, expected)
    shared, passes = joined_since(engine, before)
    assert shared == UNEQUAL_PROMPTS.get(name, passes)
    assert shared > 0
    engine.close()


@pytest.mark.parametrize("name", ["wan", "sdxl", "flux", "z-image"])
def test_a_request_joins_one_that_is_under_way_and_goes_on_when_that_is_aborted(name: str, tmp_path: Path) -> None:
    """They are at other steps of other numbers of steps; only the time step differs from row to row."""
    engine = load_clips(**options(save(name, tmp_path), max_requests=2))
    first, second = asked(name, "a red fox", 1, steps=8), asked(name, "the sea", 2, steps=5)
    (expected,) = make(engine, second)
    early, late = engine.open(first.to_wire()), Made()
    running = {early: Made()}
    step(engine, running)
    running[engine.open(second.to_wire())] = late
    before = engine.counters()
    for _ in range(3):
        step(engine, running)
    shared, passes = joined_since(engine, before)
    assert shared == passes > 0
    del running[early]
    early.close()
    while running:
        step(engine, running)
    assert_same(late, expected)
    engine.close()


def test_requests_of_other_shapes_take_turns(tmp_path: Path) -> None:
    engine = load_clips(**options(save("wan", tmp_path), max_requests=2))
    both = [asked("wan", "a red fox", 1), asked("wan", "a red fox", 1, width=32, height=32)]
    alone = [make(engine, each)[0] for each in both]
    before = engine.counters()
    for made, expected in zip(make(engine, *both), alone, strict=True):
        np.testing.assert_array_equal(made.pictures, expected.pictures)
    assert joined_since(engine, before)[0] == 0
    engine.close()


def model_of(folder: Path, change: Callable[[nn.Module], None]) -> PipelineModel:
    pipeline = load_pipeline(folder, dtype=torch.float32)
    change(pipeline.transformer)
    bounds = Bounds(sizes=(Size(width=WIDTH, height=HEIGHT),), max_frames=5)
    return PipelineModel(pipeline, bounds, device=torch.device("cpu"), capacity=2)


def test_a_model_whose_rows_mix_does_not_share_passes(tmp_path: Path) -> None:
    """What is guessed from shapes is tried before the first request."""

    def mix(transformer: nn.Module) -> None:
        forward = transformer.forward

        @functools.wraps(forward)
        def mixing(hidden_states: Tensor, **rest: Any) -> Any:
            return forward(hidden_states=hidden_states.flip(0), **rest)

        transformer.forward = mixing

    folder = save("wan", tmp_path)
    assert prove_together(model_of(folder, lambda _: None))
    assert not prove_together(model_of(folder, mix))


def test_a_pass_that_fails_together_is_repeated_one_by_one(tmp_path: Path) -> None:
    """So that who is to blame fails alone; here nobody is."""

    def narrow(transformer: nn.Module) -> None:
        forward = transformer.forward

        @functools.wraps(forward)
        def one_row(hidden_states: Tensor, **rest: Any) -> Any:
            if hidden_states.shape[0] > 1:
                raise torch.OutOfMemoryError("two rows do not fit")
            return forward(hidden_states=hidden_states, **rest)

        transformer.forward = one_row

    folder = save("wan", tmp_path)
    model = model_of(folder, narrow)
    assert not prove_together(model)
    assert model.denoisers is not None
    model.denoisers.together = True
    calls = [Call(model._pipeline.transformer, arguments(seed)) for seed in (1, 2)]
    results = model.denoisers.respond(calls)
    assert [type(result) for result in results] == [tuple, tuple]


def arguments(seed: int) -> dict[str, Any]:
    noise = torch.Generator().manual_seed(seed)
    return {
        "hidden_states": torch.randn(1, 16, 2, 4, 8, generator=noise),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 7, 32, generator=noise),
        "return_dict": False,
    }


MODULE = nn.Identity()


def call(**kwargs: Any) -> Call:
    return Call(MODULE, kwargs)


def test_what_goes_by_rows_is_put_together_and_all_else_must_agree() -> None:
    ids = torch.arange(12.0).view(6, 2)
    made = joined(
        [
            call(x=torch.zeros(2, 3), ids=ids, sizes=[[1], [2]], extra={"a": torch.ones(2)}, scale=1.0),
            call(x=torch.ones(1, 3), ids=ids.clone(), sizes=[[3]], extra={"a": torch.zeros(1)}, scale=1.0),
        ]
    )
    assert made is not None
    assert made.given["x"].tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3]
    assert torch.equal(made.given["ids"], ids)
    assert made.given["sizes"] == [[1], [2], [3]]
    assert made.given["extra"]["a"].tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"scale": 1.0}, {"scale": 2.0}),
        ({"text": torch.zeros(1, 4)}, {"text": torch.zeros(1, 5)}),
        ({"ids": torch.zeros(3, 2)}, {"ids": torch.ones(3, 2)}),
        ({"text": torch.zeros(1)}, {"text": torch.zeros(1, dtype=torch.float64)}),
        ({"mask": None}, {"mask": torch.zeros(1)}),
        ({"extra": {"a": 1}}, {"extra": {"b": 1}}),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_calls_that_do_not_agree_stay_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert joined([call(x=torch.zeros(1, 3), **one), call(x=torch.zeros(1, 3), **other)]) is None


def test_time_steps_without_rows_become_one_for_each() -> None:
    made = joined(
        [call(x=torch.zeros(2, 3), timestep=torch.tensor(7)), call(x=torch.zeros(1, 3), timestep=torch.tensor(9))]
    )
    assert made is not None
    assert made.given["timestep"].tolist() == [7, 7, 9]


def test_results_come_apart_as_they_went_together() -> None:
    rows = [2, 1]
    tensor, listed = torch.arange(3.0), ["a", "b", "c"]
    assert [part.tolist() for part in parted(tensor, rows)] == [[0.0, 1.0], [2.0]]
    assert parted(([*listed],), rows) == [(["a", "b"],), (["c"],)]
    with pytest.raises(ValueError, match="does not go by 3 rows"):
        parted(torch.zeros(4), rows)
