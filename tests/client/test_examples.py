"""The examples and the code in docs/python.md run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import streamsynth
from streamsynth.testing.server_process import ServerProcess

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("door", ["local", "remote"])
def test_the_example_of_the_python_api_runs_through_both_doors(door: str, sine_server: ServerProcess) -> None:
    arguments = [sine_server.url] if door == "remote" else []
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "python_api.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    assert ", the last" in done.stdout
    assert "finished because: stop" in done.stdout
    assert "utterance 0 cancelled, utterance 1: " in done.stdout
    assert "invalid_value: speed is 50" in done.stdout


def test_the_page_names_what_there_is() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, "docs/python.md", "exec", flags=0x2000)  # top-level await is allowed
    for name in re.findall(r"session\.(\w+)\(", text):
        assert callable(getattr(streamsynth.SpeechSession, name)), name
    for name in re.findall(r"from streamsynth import (\w+)", text):
        assert name in streamsynth.__all__
    fields = re.findall(r"^\| (`.*?`) \|", text.partition("| field | |")[2].partition("\n\n")[0], re.MULTILINE)
    named = {name for cell in fields for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(streamsynth.AudioChunk.__dataclass_fields__)
