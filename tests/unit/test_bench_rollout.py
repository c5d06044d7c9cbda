"""What `bench rollout` counts, on a small Wan folder of random weights; no figure of it is kept."""

from __future__ import annotations

import pytest
import torch
from wan_sizes import SMALL_WAN

from streamsynth.bench.random_wan import write_random_wan
from streamsynth.bench.report import Report
from streamsynth.bench.rollout import RolloutLoad, bench_rollout, pass_tflop
from streamsynth.models.wan.config import WAN_1_3B
from streamsynth.video import Size

SIZE = Size(width=64, height=32)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    folder = tmp_path_factory.mktemp("wan")
    write_random_wan(folder, SMALL_WAN, dtype=torch.float32)
    return bench_rollout(RolloutLoad(folder=folder, size=SIZE, chunks=2, rounds=1, page_tokens=8))


def test_every_row_is_of_what_was_asked_for_and_no_page_is_lost(reports: list[Report]) -> None:
    rows = reports[0].rows
    asked = [("tiny", 1), ("tiny", 2), ("full", 1), ("full", 2)]
    assert [(row["decoder"], row["videos"]) for row in rows] == asked
    for row in rows:
        assert row["pages leaked"] == 0
        assert row["pages used"] == 12 * row["videos"]
        assert row["FPS"] > 0 and row["recache ms"] > 0
        assert row["denoise ms"] > 0 and row["decode ms"] > 0 and row["commit ms"] > 0


def test_passes_stand_beside_diffusers_over_the_frames_that_they_see(reports: list[Report]) -> None:
    rows = reports[1].rows
    asked = [(3, 3, 3), (3, 12, 12)]
    assert [(row["frames"], row["seen"], row["diffusers frames"]) for row in rows] == [*asked, *asked]
    for row in rows:
        assert row["diffusers over ours"] == pytest.approx(row["diffusers ms"] / row["ms"])


def test_our_flow_is_diffusers_within_rounding(reports: list[Report]) -> None:
    for note in [note for note in reports[0].notes if "diffusers" in note]:
        assert float(note.rpartition(" ")[2]) < 1e-5


def test_a_pass_of_the_1_3b_model_is_28_tflop() -> None:
    """As the arithmetic that the figures are checked against has it: 11.7 linear, 16.1 attention."""
    tokens = 3 * 1560
    assert pass_tflop(WAN_1_3B, tokens, 4 * tokens, text_tokens=0) == pytest.approx(27.85, abs=0.01)
