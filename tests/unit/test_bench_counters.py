"""What a bench reads of a video engine's own counters, through the metrics of its server."""

from __future__ import annotations

import pytest

from streamsynth.bench.rollout_counters import pages_held, stage_split_ms
from streamsynth.bench.scrape import Look, parse
from streamsynth.observe.metrics import Metrics


def scraped(**stages: dict[str, int]) -> Look:
    metrics = Metrics()
    metrics.watch_engines(stages.items)
    return parse(metrics.render().decode())


def test_counters_of_engines_are_summed_over_their_stages() -> None:
    seen = scraped(first={"live": 1, "pages": 20, "free_pages": 12}, second={"live": 2})
    assert seen.engine == {"live": 3, "pages": 20, "free_pages": 12}
    assert pages_held(seen) == 8


def test_the_device_time_of_a_chunk_is_what_was_spent_between_two_looks() -> None:
    before = scraped(rollout={"chunks": 10, "denoise_us": 5_000, "decode_us": 100, "commit_us": 0, "recache_us": 0})
    after = scraped(rollout={"chunks": 14, "denoise_us": 25_000, "decode_us": 4_100, "commit_us": 0, "recache_us": 8})
    assert stage_split_ms(before, after) == {
        "denoise ms a chunk": pytest.approx(5.0),
        "decode ms a chunk": pytest.approx(1.0),
        "commit ms a chunk": 0.0,
        "recache ms a chunk": pytest.approx(0.002),
    }


def test_an_engine_that_says_nothing_has_no_split_and_no_pages() -> None:
    seen = scraped(paint={"live": 0, "chunks": 3})
    assert set(stage_split_ms(scraped(), seen).values()) == {None}
    assert pages_held(seen) is None
