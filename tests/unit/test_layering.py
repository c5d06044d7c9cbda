"""Who may import what (docs/architecture.md): checked in the source, and in fresh interpreters."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsynth.config.registry import pipelines

ROOT = Path(__file__).parents[2]
SOURCES = ("streamsynth", "realtime", "codecs")
HEAVY = {"torch", "onnxruntime", "hibari", "transformers", "diffusers"}


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no sources in {folders}"
    return found


def imported(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return names


def roots(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def loaded_by(statement: str, folder: Path) -> set[str]:
    """What a fresh interpreter has in `sys.modules` after a statement, started away from the source tree."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "path",
    sources("streamsynth/graph", "realtime", "codecs", "streamsynth/text", "streamsynth/config"),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_server_side_packages_import_no_torch_and_no_model(path: Path) -> None:
    assert not roots(imported(path)) & HEAVY


PURE = (
    *("speech_session", "speech_messages", "video_session", "video_messages", "media_clock", "picture_queue"),
    *("video_job", "retention"),
)


@pytest.mark.parametrize(
    "name",
    [
        *(f"realtime/{name}.py" for name in PURE),
        *(f"streamsynth/interactions/{name}.py" for name in ("steering", "blender", "slot")),
        "codecs/mp4_boxes.py",
    ],
)
def test_protocol_state_machines_import_neither_asyncio_nor_a_clock(name: str) -> None:
    """They are told the time."""
    assert not roots(imported(ROOT / name)) & {"asyncio", "torch", "aiohttp", "time", "threading"}


def test_the_graph_knows_no_door_no_worker_and_no_model() -> None:
    for path in sources("streamsynth/graph"):
        for name in imported(path):
            assert not name.startswith(("streamsynth.realtime", "streamsynth.workers", "streamsynth.models")), path


def test_only_what_runs_in_a_worker_imports_a_model() -> None:
    """Everything else reaches a model through its declaration and a worker process; what times models is none of it."""
    for path in sources(*SOURCES):
        if path.is_relative_to(ROOT / "streamsynth/models") or path.is_relative_to(ROOT / "streamsynth/bench"):
            continue
        allowed = {"streamsynth.models.hibari.pipeline"}
        named = {name for name in imported(path) if name.startswith("streamsynth.models.")}
        assert {name for name in named if not any(name.startswith(ok) for ok in allowed)} == set(), path


def test_nothing_pickles_and_nothing_forks() -> None:
    for path in sources(*SOURCES):
        assert not roots(imported(path)) & {"pickle", "cloudpickle", "dill", "multiprocessing"}, path


def environment_reads(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
            yield node.lineno


def test_the_environment_is_read_in_one_module() -> None:
    readers = {path.relative_to(ROOT).as_posix() for path in sources(*SOURCES) if list(environment_reads(path))}
    assert readers == {"streamsynth/environment.py"}


def test_importing_the_package_loads_neither_torch_nor_a_model_runtime(tmp_path: Path) -> None:
    assert not roots(loaded_by("import streamsynth; streamsynth.StreamSynth", tmp_path)) & HEAVY


def test_the_server_process_loads_neither_torch_nor_a_model_runtime(tmp_path: Path) -> None:
    assert not roots(loaded_by("import streamsynth.realtime.serve, streamsynth.serve_command", tmp_path)) & HEAVY


@pytest.mark.parametrize("name", pipelines())
def test_finding_a_pipeline_imports_its_declaration_alone(name: str, tmp_path: Path) -> None:
    """T1.17, T1.18, CFGS-1: neither the engine's module nor any other pipeline is loaded."""
    loaded = loaded_by(
        "from streamsynth.config.registry import find_pipeline\n"
        f"engines = [stage.engine.partition(':')[0] for stage in find_pipeline({name!r}).stages]\n"
        "assert not set(engines) & set(sys.modules), engines",
        tmp_path,
    )
    assert not roots(loaded) & HEAVY
    others = {"hibari": "streamsynth.models.hibari.pipeline", "sine": "streamsynth.testing.sine_pipeline"}
    assert not {module for other, module in others.items() if other != name} & loaded


def test_the_config_package_loads_no_pipeline_and_no_server(tmp_path: Path) -> None:
    """T1.17"""
    loaded = loaded_by("import streamsynth.config.plan, streamsynth.config.show", tmp_path)
    assert not roots(loaded) & {*HEAVY, "asyncio", "aiohttp", "av"}
    assert not {name for name in loaded if name.startswith(("streamsynth.models.", "streamsynth.testing."))}


def test_help_loads_no_command(tmp_path: Path) -> None:
    statement = "from streamsynth.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    loaded = loaded_by(statement, tmp_path)
    assert not roots(loaded) & {*HEAVY, "numpy", "aiohttp", "asyncio", "yaml"}


def test_every_package_is_packaged() -> None:
    """A folder that pyproject.toml forgets works from a checkout and is missing from a wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in ROOT.glob("streamsynth/**/__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == found | {
        f"streamsynth.{name}" for name in ("realtime", "codecs", "web")
    }


def test_no_package_takes_the_name_of_another_project(tmp_path: Path) -> None:
    """`codecs` is the standard library's, `realtime` and `web` are other people's."""
    loaded_by(
        "import codecs, importlib.util, sysconfig\n"
        "assert codecs.__file__.startswith(sysconfig.get_path('stdlib')), codecs.__file__\n"
        "assert importlib.util.find_spec('realtime') is None\n"
        "import streamsynth.realtime, streamsynth.codecs, streamsynth.web",
        tmp_path,
    )
