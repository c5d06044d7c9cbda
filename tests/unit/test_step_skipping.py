"""Steps that are left out: when, and that what comes of them is the first input and the last residual, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_pipelines.clips import FAMILIES, make, options, request, save
from test_diffusers_together import asked
from torch import Tensor, nn

from streamsynth.engine.diffusion.skipping.blocks import StepSkipper
from streamsynth.engine.diffusion.skipping.policies import MagCache, Measuring, TeaCache, parse_policy
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.diffusers.loading import load_clips

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SKIPPED = [name for name in FAMILIES if not name.startswith("sdxl")]
"""SDXL's denoiser is a U, not a stack."""


class AddsOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return encoder_hidden_states, hidden_states + 1


class Stack(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(AddsOne() for _ in range(blocks))

    def forward(self, x: Tensor, time: float = 1.0) -> float:
        encoder = torch.zeros(1)
        for block in self.blocks:
            encoder, x = block(x, encoder_hidden_states=encoder, temb=torch.tensor([time]))
        return float(x)

    @property
    def calls(self) -> int:
        return sum(block.calls for block in self.blocks)


ALWAYS = MagCache(mag_ratios=[1.0], retention_ratio=0.5)


def test_a_pass_that_is_left_out_adds_the_whole_stack_s_residual_once() -> None:
    """MC-1, MC-2: three blocks that add one to 0 make 3, twice, by three calls."""
    stack = Stack(3)
    skipper = StepSkipper(stack, ALWAYS)
    skipper.begin(2)
    assert (stack(torch.zeros(1)), stack.calls) == (3.0, 3)
    skipper.stepped()
    assert (stack(torch.zeros(1)), stack.calls) == (3.0, 3)
    assert (skipper.made, skipper.skipped) == (1, 1)


def test_one_block_is_first_and_last_and_the_next_request_computes() -> None:
    """MC-3, MC-4."""
    stack = Stack(1)
    skipper = StepSkipper(stack, ALWAYS)
    skipper.begin(2)
    for _ in range(2):
        stack(torch.zeros(1))
        skipper.stepped()
    assert stack.calls == 1
    skipper.begin(2)
    stack(torch.zeros(1))
    assert stack.calls == 2


def test_the_passes_of_one_step_are_remembered_apart() -> None:
    """Guidance in turn: with the prompt and without."""
    stack = Stack(2)
    skipper = StepSkipper(stack, ALWAYS)
    skipper.begin(4)
    for _ in range(2):
        assert [stack(torch.tensor([start])) for start in (0.0, 10.0)] == [2.0, 12.0]
        skipper.stepped()


def test_a_residual_of_another_shape_is_not_applied() -> None:
    stack = Stack(2)
    skipper = StepSkipper(stack, ALWAYS)
    skipper.begin(2)
    stack(torch.zeros(1))
    skipper.stepped()
    assert stack(torch.zeros(1, 1)) == 2.0
    assert skipper.skipped == 0


def decisions(policy: Any, steps: int, changes: list[float] | None = None) -> str:
    run = policy.run(steps)
    given = changes or [0.0] * steps
    return "".join("-" if run.skips(change) else "+" for change in given)


def test_magcache_leaves_out_while_the_error_of_its_ratios_is_small() -> None:
    assert decisions(MagCache(mag_ratios=[1.0], retention_ratio=0.0), 8) == "+-----+-"
    assert decisions(MagCache(mag_ratios=[1.0], retention_ratio=0.5), 8) == "++++----"
    assert decisions(MagCache(mag_ratios=[1.0], max_skip_steps=1, retention_ratio=0.0), 6) == "+-+-+-"
    assert decisions(MagCache(mag_ratios=[0.9], threshold=0.3, retention_ratio=0.0), 6) == "+--+--"
    assert decisions(MagCache(mag_ratios=[0.5], retention_ratio=0.0), 4) == "++++"


def test_ratios_of_another_number_of_steps_are_stretched() -> None:
    policy = MagCache(mag_ratios=[0.5, 0.5, 1.0, 1.0], retention_ratio=0.0)
    assert decisions(policy, 4) == "++--"
    assert decisions(policy, 8) == "++++----"


def test_teacache_leaves_out_until_the_signal_has_moved_far_enough_and_makes_first_and_last() -> None:
    assert decisions(TeaCache(threshold=0.25), 7, [0.1] * 7) == "+--+--+"
    assert decisions(TeaCache(threshold=0.25, coefficients=[2.0, 0.0]), 7, [0.1] * 7) == "+-+-+-+"
    assert decisions(TeaCache(threshold=0.25, coefficients=[0.0]), 4, [9.0] * 4) == "+--+"


def test_teacache_sees_how_far_the_time_embedding_has_moved() -> None:
    stack = Stack(2)
    skipper = StepSkipper(stack, TeaCache(threshold=0.5))
    skipper.begin(10)
    made = []
    for time in (1.0, 1.2, 1.4, 3.0, 3.1):
        stack(torch.zeros(1), time)
        skipper.stepped()
        made.append(skipper.made)
    assert made == [1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        ({"method": "hope"}, ErrorCode.INVALID_VALUE, "step_skipping.method"),
        ({"method": "magcache"}, ErrorCode.MISSING_FIELD, "step_skipping.mag_ratios"),
        ({"method": "magcache", "mag_ratios": [1.0], "k": 2}, ErrorCode.UNKNOWN_FIELD, "step_skipping.k"),
        ({"method": "magcache", "mag_ratios": [0.0]}, ErrorCode.INVALID_VALUE, "mag_ratios"),
        ({"method": "magcache", "mag_ratios": [1.0], "max_skip_steps": 0}, ErrorCode.INVALID_VALUE, "max_skip_steps"),
        ({"method": "magcache", "mag_ratios": [1.0], "retention_ratio": 2}, ErrorCode.INVALID_VALUE, "retention_ratio"),
        ({"method": "teacache", "threshold": "0.1"}, ErrorCode.INVALID_VALUE, "threshold"),
        ({"method": "teacache", "coefficients": []}, ErrorCode.INVALID_VALUE, "coefficients"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(given: dict[str, Any], code: ErrorCode, param: str) -> None:
    with pytest.raises(StreamSynthError) as refused:
        parse_policy(given)
    assert (refused.value.code, refused.value.param) == (code, param)


def test_nothing_is_skipped_unless_somebody_asks() -> None:
    assert parse_policy({}) is None
    assert parse_policy({"method": "measure"}) == Measuring()


@pytest.mark.parametrize("name", SKIPPED)
@pytest.mark.parametrize("offload", [False, True])
def test_every_stack_of_blocks_can_be_left_out(name: str, offload: bool, tmp_path: Path) -> None:
    """Where nothing is left out in fact, the bytes are the same; where it is, passes are fewer, and pictures come."""
    torch.set_num_threads(1)
    folder = save(name, tmp_path)
    five = asked(name, "a red fox", 1, steps=5)
    (exact,) = make(load_clips(**options(folder)), five)
    never = {"method": "magcache", "mag_ratios": [9.0], "retention_ratio": 0.0}
    (same,) = make(load_clips(**options(folder, step_skipping=never)), five)
    np.testing.assert_array_equal(same.pictures, exact.pictures)
    often = {"method": "magcache", "mag_ratios": [1.0], "max_skip_steps": 1, "retention_ratio": 0.0}
    engine = load_clips(**options(folder, step_skipping=often, offload=offload))
    before = engine.counters()
    first, second = (make(engine, five)[0] for _ in range(2))
    np.testing.assert_array_equal(first.pictures, second.pictures)
    assert first.error is None
    passes = {key: engine.counters()[key] - before[key] for key in ("passes", "skipped_passes")}
    assert 3 * passes["skipped_passes"] == 2 * passes["passes"] > 0
    engine.close()


def test_what_magcache_needs_is_measured_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = load_clips(**options(save("wan", tmp_path), step_skipping={"method": "measure"}))
    caplog.clear()
    make(engine, request("wan", steps=4))
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("streamsynth")]
    ratios = [float(number) for number in line.removeprefix("mag_ratios: [").removesuffix("]").split(",")]
    assert (len(ratios), ratios[0]) == (4, 1.0)
    assert all(0.5 < ratio < 2 for ratio in ratios)
    parse_policy({"method": "magcache", "mag_ratios": ratios})
    engine.close()


def test_requests_that_share_passes_do_not_skip(tmp_path: Path) -> None:
    skipping = {"method": "teacache"}
    with pytest.raises(StreamSynthError) as refused:
        load_clips(**options(save("wan", tmp_path), step_skipping=skipping, max_requests=2))
    assert refused.value.param == "max_requests"


def test_a_denoiser_that_is_no_stack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamSynthError, match="used with a transformer"):
        load_clips(**options(save("sdxl", tmp_path), step_skipping={"method": "teacache"}))
