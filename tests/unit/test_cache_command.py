"""`streamsynth cache` on a small model in diffusers' layout: what it says, and that a start finds what it built."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from wan_models import SMALL, noise, reference_transformer

from streamsynth import cli, environment
from streamsynth.engine.quant.cache import QuantCache
from streamsynth.engine.quant.load import load_quantised
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.errors import StreamSynthError
from streamsynth.models.diffusers.component import component_source

IGNORED = "condition_embedder.*"


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["cache", *args])
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def model(tmp_path: Path) -> Path:
    reference_transformer(SMALL).save_pretrained(tmp_path / "model" / "transformer")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STREAMSYNTH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "quantised"


def test_what_is_built_is_listed_verified_found_and_removed(
    model: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("ls") == 0
    assert capsys.readouterr().out == ""
    assert run("build", str(model), "--ignore", IGNORED, "--dtype", "float32") == 0
    name, _, said = capsys.readouterr().out.partition(": ")
    assert said.startswith("31 float8 layers, 0.")
    source = component_source(model, "transformer", torch.float32)
    recipe = Recipe(ignored=(IGNORED,))
    hit, without = load_quantised(source, recipe, QuantCache(root)), load_quantised(source, recipe, None)
    assert (hit.hit, without.hit) == (True, False)
    given = (noise(1, 4, 2, 6, 8), torch.tensor([999.0]), noise(1, 7, 24, seed=2))
    with torch.inference_mode():
        assert torch.equal(hit.module(*given).sample, without.module(*given).sample)
    assert run("ls", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["name"], entry["state"], entry["float8 layers"]) == (name, "complete", 31)
    assert entry["made from"] == str(model / "transformer")
    assert run("verify") == 0
    assert capsys.readouterr().out == f"{name}: intact\n"
    assert run("build", str(model), "--ignore", IGNORED, "--dtype", "float32") == 0
    assert run("rm", name) == 0
    assert QuantCache(root).entries() == []


def test_damage_is_said_and_ends_with_status_1(model: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("build", str(model))
    name = capsys.readouterr().out.partition(": ")[0]
    with (root / name / "tensors-00000.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    assert run("ls") == 0
    assert "complete" in capsys.readouterr().out
    assert run("verify", name) == 1
    assert "tensors-00000.safetensors is not as it was written from byte 0" in capsys.readouterr().out
    assert run("build", str(model)) == 0
    assert run("verify") == 0
    assert run("rm", "--all") == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["rm"], "or --all instead"),
        (["rm", "a", "--all"], "or --all instead"),
        (["verify", "nothing"], "NAME is 'nothing'; it must be one that is in"),
        (["build", "/nowhere"], "a folder with a config.json of diffusers'"),
        (["build", "MODEL", "--dtype", "int8"], "--dtype is 'int8'; it must be one of bfloat16"),
        (["build", "MODEL", "--ignore", "nothing.*"], "ignored is 'nothing.*'"),
        (["build", "MODEL", "--component", "vae"], "component is"),
        (["build", "MODEL", "--device", "zap"], "--device is 'zap'; it must be cpu"),
        (["build", "MODEL", "--device", "cuda:99"], "--device is 'cuda:99'; it must be cpu"),
        (["ls", "--cache", __file__], "--cache is"),
        (["build", "MODEL", "--cache", "/proc/nowhere"], "/proc/nowhere: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    args: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(str(model) if arg == "MODEL" else arg for arg in args)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("data", [b"more", None])
def test_weights_that_are_damaged_are_one_line(
    data: bytes | None, model: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written on, and cut short."""
    (weights,) = (model / "transformer").glob("*.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] if data is None else whole + data)
    capsys.readouterr()
    assert run("build", str(model)) == 2
    said = capsys.readouterr().err
    assert f"error: {model / 'transformer'} cannot be loaded: its files are damaged or do not belong together" in said
    assert len(said.splitlines()) == 1
    assert QuantCache(root).entries() == []


def test_folders_that_are_no_artifacts_are_neither_shown_nor_removed(
    model: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody names a folder of their own as the cache."""
    run("build", str(model))
    for name in ("photos", "wan-2.1", "transformer-0123"):
        (root / name).mkdir()
    name = capsys.readouterr().out.partition(": ")[0]
    assert run("ls", "--json") == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == [name]
    assert run("rm", "--all") == 0
    assert sorted(path.name for path in root.iterdir() if path.name[0] != ".") == [
        "photos",
        "transformer-0123",
        "wan-2.1",
    ]


@pytest.mark.parametrize("config", [{"_class_name": "DDPMScheduler"}, {"_class_name": "_Hidden"}, {}, []])
def test_a_component_that_is_no_model_of_diffusers_is_refused(config: object, model: Path) -> None:
    (model / "transformer" / "config.json").write_text(json.dumps(config))
    with pytest.raises(StreamSynthError, match="component is"):
        component_source(model, "transformer", torch.bfloat16)


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("STREAMSYNTH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert environment.cache_folder() == Path("/somewhere/streamsynth")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert environment.cache_folder() == Path.home() / ".cache" / "streamsynth"
