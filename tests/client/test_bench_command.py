"""`streamsynth bench`, run as a user runs it, for a moment: the figures mean nothing, their names and checks do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamsynth.testing.server_process import ServerProcess


def bench(output: Path, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamsynth", "bench", *arguments, "--output", str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def content(path: Path) -> dict[str, Any]:
    loaded = json.loads(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_speech_measures_closed_and_open_loops(tmp_path: Path) -> None:
    loads = ["--clients", "2", "--listeners", "1", "--rate", "4", "--cancels", "4"]
    done = bench(tmp_path, "speech", "--model", "sine", "--seconds", "0.5", *loads)
    assert done.returncode == 0, done.stderr
    report = content(tmp_path / "speech.json")
    assert [row["load"] for row in report["rows"]] == ["2 clients", "1 listeners", "4 a second"]
    assert [row["failed"] for row in report["rows"]] == [0, 0, 0]
    for name in ("TTFA p50 ms", "first payload p50 ms", "audible onset p50 ms", "RTF p50", "underrun p95 ms", "C100"):
        assert report["rows"][0][name] is not None
        assert name in done.stdout
    assert "frames after the ack: 0" in report["notes"][1]
    assert (tmp_path / "speech.png").exists()


def test_speech_measures_a_server_that_runs_already(tmp_path: Path, sine_server: ServerProcess) -> None:
    loads = ["--model", "sine", "--clients", "1", "--seconds", "0.2", "--cancels", "0"]
    done = bench(tmp_path, "speech", "--url", sine_server.url, *loads)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "speech.json")["settings"]["ready_s"] is None
    assert sine_server.running


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("speech", "--set", "tone.threads=2"), "--set is 'tone.threads=2'; it must be absent with --url"),
        (("speech", "--start-timeout-s", "60"), "--start-timeout-s is 60.0; it must be absent with --url"),
        (("video", "--set", "brush.step_ms=1"), "--set is 'brush.step_ms=1'; it must be absent with --url"),
        (("video", "--start-timeout-s", "9"), "--start-timeout-s is 9.0; it must be absent with --url"),
        (("sessions", "--busy"), "--busy is True; it must be absent with --url"),
    ],
)
def test_what_says_how_a_server_is_started_is_refused_beside_one_that_runs(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = bench(tmp_path, *arguments, "--url", "http://127.0.0.1:9")
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_wire_measures_beside_a_pipe(tmp_path: Path) -> None:
    done = bench(tmp_path, "wire", "--size", "1600", "--size", "160000", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    rows = content(tmp_path / "wire.json")["rows"]
    assert [row["bytes"] for row in rows] == [1600, 160_000]
    for way in ("pipe", "wire", "server"):
        assert 0 < rows[0][f"{way} p50 ms"] <= rows[0][f"{way} p99 ms"]


def test_wire_refuses_what_is_no_array(tmp_path: Path) -> None:
    done = bench(tmp_path, "wire", "--size", "1601")
    assert (done.returncode, done.stderr) == (2, "error: --size is 1601; it must be a multiple of 4\n")


@pytest.mark.slow
def test_a_minute_of_sessions_leaves_nothing_behind(tmp_path: Path) -> None:
    """S20, S25, S27, S35, S36, S37: counters and leaks of many sessions, cancels, stalled readers and a short soak."""
    done = bench(tmp_path, "sessions", "--quick", timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    names = ["sessions", "sessions-cancels", "sessions-stalled", "soak"]
    assert [content(tmp_path / f"{name}.json")["bench"] for name in names] == names
    (cancels,) = content(tmp_path / "sessions-cancels.json")["rows"]
    assert cancels["acknowledged"] > 150
    assert cancels["frames after the ack"] == 0
