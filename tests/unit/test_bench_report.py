"""What a bench leaves behind: rows with the names of the metrics, JSON that any reader takes, plots."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from streamsynth.bench.client import Heard
from streamsynth.bench.report import Panel, Report
from streamsynth.bench.scrape import Histogram, parse
from streamsynth.bench.speech import row_of

MS = 1_000_000

METRICS = """
# HELP streamsynth_loop_lag_seconds Lateness of the event loop's timers.
# TYPE streamsynth_loop_lag_seconds histogram
streamsynth_loop_lag_seconds_bucket{le="0.001"} %d
streamsynth_loop_lag_seconds_bucket{le="0.02"} %d
streamsynth_loop_lag_seconds_bucket{le="+Inf"} %d
streamsynth_loop_lag_seconds_count %d
streamsynth_loop_lag_seconds_sum 1.0
# HELP streamsynth_utterances_total Utterances by how they ended.
# TYPE streamsynth_utterances_total counter
streamsynth_utterances_total{surface="socket",status="completed"} 3
streamsynth_utterances_total{surface="http",status="completed"} 4
# HELP streamsynth_sessions Open speech sockets.
# TYPE streamsynth_sessions gauge
streamsynth_sessions 2
"""


def heard(ttfa_ms: int, *, underrun_ms: int = 0, audio_ms: int = 1000) -> Heard:
    return Heard(
        status="completed",
        ttfa_ns=ttfa_ms * MS,
        first_payload_ns=80 * MS,
        audible_ns=(ttfa_ms + 30) * MS,
        underrun_ns=underrun_ms * MS,
        ended_ns=500 * MS,
        audio_ns=audio_ms * MS,
    )


def test_metrics_are_summed_over_labels_and_histograms_taken_apart() -> None:
    looked = parse(METRICS % (90, 99, 100, 100))
    assert looked.values["utterances_total"] == 7
    assert looked.values["sessions"] == 2
    assert looked.histograms["loop_lag_seconds"].counts == {0.001: 90, 0.02: 9, math.inf: 1}


def test_a_quantile_of_a_histogram_is_a_bound_of_what_came_between_two_looks() -> None:
    before, after = parse(METRICS % (90, 99, 100, 100)), parse(METRICS % (90, 299, 300, 300))
    assert before.lag_p99_s(parse(METRICS % (0, 0, 0, 0))) == 0.02
    assert after.lag_p99_s(before) == 0.02
    assert after.histogram("loop_lag_seconds", before).count == 200
    assert math.isnan(Histogram({}).quantile_bound(0.5))


def test_a_row_has_the_metrics_of_its_listeners() -> None:
    looks = parse(METRICS % (0, 0, 0, 0)), parse(METRICS % (90, 100, 100, 100))
    requests = [heard(40), heard(60, underrun_ms=80), heard(80, underrun_ms=150), Heard(status="failed", error="full")]
    row = row_of("3 clients", requests, *looks)
    assert row == {
        "load": "3 clients",
        "requests": 4,
        "failed": 1,
        "TTFA p50 ms": 60,
        "TTFA p95 ms": pytest.approx(78),
        "first payload p50 ms": 80,
        "audible onset p50 ms": 90,
        "audible onset p95 ms": pytest.approx(108),
        "RTF p50": 0.5,
        "RTF p95": 0.5,
        "underrun p95 ms": pytest.approx(143),
        "C50": 0.25,
        "C100": 0.5,
        "C200": 0.75,
        "loop lag p99 <= ms": 20,
        "errors": "full",
    }


def test_a_load_that_nobody_survived_has_a_row_too() -> None:
    looks = parse(METRICS % (0, 0, 0, 0)), parse(METRICS % (0, 0, 0, 0))
    row = row_of("1 client", [], *looks)
    assert (row["requests"], row["failed"], row["errors"]) == (0, 0, None)


def test_a_report_is_a_table_json_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    panel = Panel("title", "x", "y", [1.0, 10.0], {"line": [0.5, None], "other": [math.nan, 2.0]}, log=True)
    rows = [{"load": "a", "value": 0.5, "missing": math.nan}, {"load": "b", "value": math.inf, "missing": None}]
    report = Report("name", rows, [panel], ["a note"], {"seconds": 1})
    report.show()
    assert capsys.readouterr().out == "load\tvalue\tmissing\na\t0.500\t-\nb\tinf\t-\n"
    paths = report.write(tmp_path / "folder")
    assert [path.name for path in paths] == ["name.json", "name.png"]
    content = json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    assert content["rows"] == [
        {"load": "a", "value": 0.5, "missing": None},
        {"load": "b", "value": None, "missing": None},
    ]
    assert content["machine"]["cores"] >= 1
    assert (content["settings"], content["notes"]) == ({"seconds": 1}, ["a note"])
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_a_report_without_panels_has_no_plot(tmp_path: Path) -> None:
    assert Report("name", [{"a": 1}]).write(tmp_path) == [tmp_path / "name.json"]
