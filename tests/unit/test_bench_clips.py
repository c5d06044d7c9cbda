"""The bench of whole clips: every side makes the same pictures."""

from pathlib import Path

from small_pipelines.clips import HEIGHT, WIDTH, save

from streamsynth.bench.clips import DIFFUSERS, ClipsLoad, bench_clips
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
