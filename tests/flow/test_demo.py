"""The demonstration: speech through a server that it started, with figures, and nothing left running."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
import wave
from pathlib import Path

import numpy as np
import pytest

DEMO = Path(__file__).parents[2] / "examples/demo.py"


def test_it_writes_speech_says_how_fast_and_stops_its_server(tmp_path: Path) -> None:
    path = tmp_path / "out" / "demo.wav"
    done = subprocess.run(
        [sys.executable, str(DEMO), "--output", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with wave.open(str(path)) as file:
        rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert rate == 24_000
    assert len(samples) > 10 * rate
    assert np.abs(samples).max() > 3000
    seconds = re.search(r"\(([\d.]+) s of speech in [\d.]+ s\)", done.stdout)
    assert seconds is not None
    assert float(seconds[1]) == pytest.approx(len(samples) / rate, abs=0.01)
    assert re.search(r"time to first audio +\d+ ms", done.stdout)
    chunks = re.search(r"chunks +(\d+)", done.stdout)
    assert chunks is not None
    assert int(chunks[1]) > 4
    url = re.search(r"http://\S+(?=, ready)", done.stdout)
    assert url is not None
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url[0]}/health", timeout=5)
