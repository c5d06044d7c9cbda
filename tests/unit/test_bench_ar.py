"""What `bench ar` counts, on a small talker of random weights; no figure of it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from csm_sizes import SMALL_CODEC, SMALL_TALKER

from streamsynth.bench.ar import OURS, THEIRS, ArLoad, bench_ar, frame_rate_of
from streamsynth.models.csm.random_folder import write_random_csm


def test_the_sides_draw_the_same_frames_and_every_row_is_of_the_streams_that_were_asked_for(tmp_path: Path) -> None:
    write_random_csm(tmp_path, SMALL_TALKER, SMALL_CODEC)
    rate = frame_rate_of(tmp_path)
    load = ArLoad(folder=tmp_path, frame_rate=rate, streams=(1, 3), theirs=(1,), context=20, frames=5, rounds=2)
    (report,) = bench_ar(load)
    assert [(row["side"], row["streams"]) for row in report.rows] == [(OURS, 1), (THEIRS, 1), (OURS, 3)]
    for row in report.rows:
        assert row["frames/s"] == pytest.approx(row["steps/s"] * row["streams"])
        assert row["times real time"] == pytest.approx(row["frames/s"] / 12.5)
    assert report.rows[1]["over transformers alone"] == 1.0
    assert report.rows[2]["over its batch"] is None
    assert any(note.endswith("the first 5 of 5 frames are equal") for note in report.notes)
