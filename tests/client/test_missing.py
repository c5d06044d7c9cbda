"""What this machine has not is one line that says how to have it: extras that are not installed, devices."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from streamsynth.errors import StreamSynthError
from streamsynth.extras import EXTRAS
from streamsynth.models.llama.weights import read_tensors

_WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def base_install(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds no module of an extra; its workers do not either."""
    absent = sorted(set().union(*EXTRAS.values()))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_WITHOUT.format(absent=absent))
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamsynth", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


def test_every_extra_brings_its_modules() -> None:
    distributions = metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        required = {line.partition(";")[0] for line in metadata.requires("streamsynth") or [] if f'"{extra}"' in line}
        named = {name.lower() for module in modules for name in distributions.get(module, [module])}
        assert {line.lower().rstrip(" ,.<>=!0123456789") for line in required} == named


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cache", "build", "FOLDER"), "error: this command needs diffusers, which is not installed"),
        (
            ("generate", "red", "-o", "FOLDER/x.png", "--model", "diffusers"),
            "error: stage diffusers.denoiser did not load: this model needs PIL, which is not installed",
        ),
        (
            ("serve", "--model", "diffusers", "--port", "0"),
            "did not load: this model needs PIL, which is not installed",
        ),
    ],
)
def test_a_missing_extra_is_named(
    arguments: tuple[str, ...], said: str, base_install: dict[str, str], tmp_path: Path
) -> None:
    done = run(*(each.replace("FOLDER", str(tmp_path)) for each in arguments), env=base_install)
    assert done.returncode == 2
    assert said in done.stderr and "pip install 'streamsynth[diffusers]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--port", "0", "--model", "wan", "--set", "rollout.folder=/x", "--set", "rollout.device=cuda:99"),
        ("serve", "--port", "0", "--model", "tiny-world", "--set", "rollout.device=zap"),
        ("bench", "ar", "--device", "zap"),
        ("bench", "rollout", "/x", "--device", "cuda:99"),
    ],
)
def test_a_device_that_is_not_here_is_refused_with_what_may_be(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "device is" in done.stderr and "it must be cpu" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "rollout", "/nowhere", "--device", "cpu"), "error: /nowhere/transformer/config.json: No such file"),
        (
            (
                *("serve", "--port", "0", "--model", "wan", "--set", "rollout.folder=/nowhere"),
                *("--set", "rollout.device=cpu", "--set", "rollout.kv_cache_memory_bytes=1000000"),
            ),
            "error: stage wan.rollout did not load: /nowhere/transformer/config.json: No such file or directory",
        ),
    ],
)
def test_a_file_that_is_not_there_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_weights_of_a_file_that_was_written_on_are_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}more")
    with pytest.raises(StreamSynthError, match=r"model\.safetensors is no safetensors file"):
        read_tensors(tmp_path)
