"""What `bench offload` counts, on a small model; no figure of it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamsynth.bench.float8 import Float8Load, bench_float8
from streamsynth.bench.offload import OURS, OffloadLoad, bench_offload
from streamsynth.bench.offload_sides import ACCELERATE, DIFFUSERS, DitSizes
from streamsynth.bench.quant_load import QuantLoad, bench_quant_load
from streamsynth.bench.sharing import bench_sharing
from streamsynth.bench.sharing_rank import WAYS, SharingLoad
from streamsynth.errors import StreamSynthError

SMALL = DitSizes(layers=4, heads=2, head_dim=16, ffn=64)


def test_every_side_passes_the_same_model_and_gives_the_same_bits() -> None:
    load = OffloadLoad(
        sizes=SMALL,
        device="cpu",
        dtype="float32",
        tokens=(16, 64),
        resident=(0, 2),
        theirs=(DIFFUSERS, ACCELERATE),
        depths=(1, 2, 4),
        passes=2,
        rounds=2,
    )
    passes, memory = bench_offload(load)
    assert [(row["side"], row["resident"], row["tokens"]) for row in passes.rows] == [
        *((OURS, resident, tokens) for resident in (0, 2) for tokens in (16, 64)),
        *((side, 0, tokens) for side in (DIFFUSERS, ACCELERATE) for tokens in (16, 64)),
    ]
    assert {row["same bits"] for row in passes.rows} == {"4 of 4"}
    for row in passes.rows:
        assert isinstance(row["GB/s"], float)
        assert row["GB/s"] > 0
        assert (row["over the better peer"] is None) == (row["side"] != OURS)
        assert (row["stall share"] is None) == (row["side"] != OURS)
    assert [row["layers"] for row in memory.rows] == [1, 2, 4]
    assert "parameters" in passes.notes[0]


def test_float8_layers_are_near_those_that_they_are_timed_beside() -> None:
    report = bench_float8(Float8Load(device="cpu", shapes=((64, 32),), rows=(8, 16), repeats=2, rounds=2))
    assert [(row["in"], row["out"], row["rows"]) for row in report.rows] == [(64, 32, 8), (64, 32, 16)]
    for row in report.rows:
        assert isinstance(row["error"], float)
        assert 0 < row["error"] < 0.06
        assert row["float8 of peak"] is None


def test_starts_are_timed_with_and_without_the_cache(tmp_path: Path) -> None:
    load = QuantLoad(folder=tmp_path / "scratch", sizes=SMALL, device="cpu", rounds=1)
    report = bench_quant_load(load)
    assert [(row["way"], row["hit"]) for row in report.rows] == [
        ("from the checkpoint, on disk", "no"),
        ("from the checkpoint, in the page cache", "no"),
        ("with the cache, on disk", "yes"),
        ("with the cache, in the page cache", "yes"),
        ("from the checkpoint, filling the cache", "no"),
    ]
    assert report.rows[0]["of cold"] == 1.0
    assert not (tmp_path / "scratch").exists()


def test_a_clip_that_is_no_whole_number_of_rows_is_refused() -> None:
    with pytest.raises(StreamSynthError, match="tokens is 18; it must be a multiple of 4"):
        OffloadLoad(tokens=(18,))


@pytest.mark.slow
def test_ranks_are_timed_in_every_way_of_sharing() -> None:
    """Two ranks keep half of the blocks each, or all of them."""
    load = SharingLoad(ranks=2, sizes=SMALL, device="cpu", dtype="float32", tokens=(16,), passes=1, rounds=1)
    report = bench_sharing(load)
    assert [row["way"] for row in report.rows] == list(WAYS)
    sharded, local, fsdp, offloaded = (row["host GB a rank"] for row in report.rows)
    assert isinstance(sharded, float)
    assert isinstance(local, float)
    assert 0.5 * local <= sharded < 0.55 * local
    assert fsdp == 0
    assert offloaded == pytest.approx(0.5 * local, rel=0.05)
    assert all(row["same bits"] for row in report.rows)
