"""The bench of whole clips: every side makes the same pictures."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_pipelines.clips import HEIGHT, WIDTH, save
from torch import nn
from wan_sizes import SMALL_WAN

from streamsynth.bench.clips import DIFFUSERS, ClipsLoad, bench_clips
from streamsynth.bench.idle import Gaps
from streamsynth.bench.random_wan import write_random_wan
from streamsynth.video import Size


def test_every_side_makes_what_diffusers_makes(tmp_path: Path) -> None:
    load = ClipsLoad(
        folder=save("wan", tmp_path),
        size=Size(width=WIDTH, height=HEIGHT),
        frames=5,
        steps=2,
        clips=3,
        rounds=1,
        device="cpu",
        dtype="float32",
    )
    rows = {row["side"]: row for row in bench_clips(load).rows}
    alone, shared = "streamsynth, 1 at once", "streamsynth, 2 at once"
    assert list(rows) == [DIFFUSERS, alone, "streamsynth, waiting for copies", shared]
    assert [row["farthest from diffusers"] for row in rows.values()][:3] == [0, 0, 0]
    assert rows[shared]["farthest from diffusers"] in (0, 1)
    idle = {name: row["idle between requests"] for name, row in rows.items()}
    assert idle[shared] == "-"
    assert all(share.endswith("%") for name, share in idle.items() if name != shared)


def test_the_random_folder_of_the_benches_is_a_whole_pipeline(tmp_path: Path) -> None:
    write_random_wan(tmp_path, SMALL_WAN, dtype=torch.float32)
    load = ClipsLoad(
        folder=tmp_path,
        size=Size(width=64, height=32),
        frames=5,
        steps=2,
        clips=2,
        rounds=1,
        together=(1,),
        device="cpu",
        dtype="float32",
    )
    rows = bench_clips(load).rows
    assert [row["farthest from diffusers"] for row in rows] == [0, 0, 0]


def test_a_gap_is_from_the_end_of_one_request_to_the_first_pass_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 10.0, 11.0, 21.0, 23.0, 33.0, 40.0])
    monkeypatch.setattr("streamsynth.bench.idle.time.perf_counter", lambda: next(moments))
    pipeline = SimpleNamespace(components={"denoiser": nn.Sequential(nn.Identity()), "scheduler": object()})
    gaps = Gaps(pipeline, torch.device("cpu"))
    for _ in range(3):
        gaps.begin()
        for _ in range(2):
            pipeline.components["denoiser"](torch.zeros(1))
        gaps.end()
    assert gaps.idle_share == pytest.approx(1.5 / 10)
    gaps.end()  # One whose beginning was not seen.
    assert math.isnan(gaps.idle_share)
    gaps.close()
