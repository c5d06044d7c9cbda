"""The public names load on first use, and importing the package loads next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import streamsynth


def test_every_public_name_is_there() -> None:
    for name in streamsynth.__all__:
        assert getattr(streamsynth, name).__name__ == name
    assert set(streamsynth.__all__) <= set(dir(streamsynth))


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = streamsynth.Nothing


def test_importing_it_loads_no_package_but_its_own() -> None:
    code = "import sys; before = set(sys.modules); import streamsynth; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"streamsynth"}


def test_the_remote_half_needs_neither_engines_nor_codecs() -> None:
    code = (
        "import sys; from streamsynth import StreamSynth; StreamSynth.connect('http://127.0.0.1:1');"
        "print(*(name for name in ('torch', 'onnxruntime', 'av', 'soxr', 'aiohttp') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
