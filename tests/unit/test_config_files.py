"""Deploy files and `--set`: what they mean, and what is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.config import registry
from streamsynth.config.deploy_file import MAX_BYTES, parse_deploy_file, read_deploy_file
from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.config.plan import plan
from streamsynth.config.resolve import Setting
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.speech import SpeechTraits, Voice

PATH = Path("deploy.yaml")


def declared(name: str) -> Pipeline:
    voice = Stage(name="voice", kind=StageKind.GENERATION, engine="package.module:Class")
    speech = SpeechTraits(sample_rate=24000, voices=(Voice(id="a", name="A", languages=("en",)),), default_voice="a")
    return Pipeline(name=name, description="", stages=(voice,), output="voice", traits=speech)


ALTO = declared("alto")
TENOR = declared("tenor")


@pytest.fixture(autouse=True)
def two_more_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pipelines whose stages have the same name."""
    monkeypatch.setitem(registry._DECLARATIONS, "alto", f"{__name__}:ALTO")  # type: ignore[misc]
    monkeypatch.setitem(registry._DECLARATIONS, "tenor", f"{__name__}:TENOR")  # type: ignore[misc]


def written(folder: Path, text: str, name: str = "deploy.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_sets_fields_and_each_remembers_its_line() -> None:
    file = parse_deploy_file("pipeline: hibari\nstages:\n  voice:\n    threads: 2\n    style: null\n", PATH)
    assert file.pipeline == "hibari"
    assert file.layer == {
        "voice": {"threads": Setting(2, "deploy.yaml:4"), "style": Setting(None, "deploy.yaml:5")},
    }


def test_a_merged_map_gives_values_that_the_stage_itself_overrides() -> None:
    text = "pipeline: a\nstages:\n  one: &base {threads: 2, style: x}\n  two:\n    <<: *base\n    threads: 3\n"
    layer = parse_deploy_file(text, PATH).layer
    assert {name: setting.value for name, setting in layer["two"].items()} == {"threads": 3, "style": "x"}


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("pipeline: a\npipeline: b", ErrorCode.INVALID_VALUE, "deploy.yaml:2: pipeline is set twice"),
        ("pipeline: a\nstages:\n  v: {x: 1}\n  v: {}", ErrorCode.INVALID_VALUE, "deploy.yaml:4: v is set twice"),
        ("pipeline: a\nstages:\n  v: {x: 1, x: 2}", ErrorCode.INVALID_VALUE, "deploy.yaml:3: x is set twice"),
        ("pipeline: a\nstages:\n  v: {x: {y: 1, y: 2}}", ErrorCode.INVALID_VALUE, "deploy.yaml:3: y is set twice"),
        ("pipeline: a\nstage: {}", ErrorCode.UNKNOWN_FIELD, "deploy.yaml:2: no field 'stage'; a deploy file has"),
        ("stages: {}", ErrorCode.MISSING_FIELD, "deploy.yaml: pipeline is missing"),
        ("pipeline: 3", ErrorCode.INVALID_VALUE, "deploy.yaml:1: pipeline is 3; it must be the name of a pipeline"),
        ("pipeline: a\nstages:", ErrorCode.INVALID_VALUE, "deploy.yaml:2: stages is None; it must be a map"),
        ("pipeline: a\nstages:\n  v:", ErrorCode.INVALID_VALUE, "deploy.yaml:3: stages.v is None; it must be a map"),
        ("pipeline: a\nstages: {v: {1: 2}}", ErrorCode.INVALID_VALUE, "deploy.yaml:2: key is 1; it must be text"),
        ("- pipeline", ErrorCode.INVALID_VALUE, "deploy.yaml: must be a map with the keys pipeline and stages"),
        ("", ErrorCode.INVALID_VALUE, "deploy.yaml: must be a map"),
        ("pipeline: [", ErrorCode.INVALID_VALUE, "deploy.yaml:1: expected the node content"),
        ("pipeline: !!python/name:os.system x", ErrorCode.INVALID_VALUE, "deploy.yaml:1: could not determine"),
        ("pipeline: a\n---\npipeline: b", ErrorCode.INVALID_VALUE, "deploy.yaml:2: but found another document"),
    ],
)
def test_a_wrong_file_is_refused_with_file_line_and_reason(text: str, code: ErrorCode, message: str) -> None:
    with pytest.raises(StreamSynthError) as caught:
        parse_deploy_file(text, PATH)
    assert caught.value.code is code
    assert str(caught.value).startswith(message)


@given(st.text() | st.binary())
def test_no_file_content_gives_anything_but_a_typed_error_of_one_line(text: str | bytes) -> None:
    try:
        parse_deploy_file(text, PATH)
    except StreamSynthError as error:
        assert "\n" not in str(error)


def test_a_file_that_cannot_be_read_or_is_too_large_is_said(tmp_path: Path) -> None:
    with pytest.raises(StreamSynthError, match=r"none\.yaml: cannot be read: No such file"):
        read_deploy_file(tmp_path / "none.yaml")
    with pytest.raises(StreamSynthError, match=f"larger than {MAX_BYTES} bytes"):
        read_deploy_file(written(tmp_path, "#" * (MAX_BYTES + 1)))


def test_without_models_the_default_runs_and_a_deploy_file_brings_its_own(tmp_path: Path) -> None:
    assert [deployment.pipeline.name for deployment in plan()] == ["tiny-speech"]
    path = written(tmp_path, "pipeline: alto\n")
    assert [deployment.pipeline.name for deployment in plan(deploy=[path])] == ["alto"]


def test_each_deploy_file_applies_to_the_model_it_names(tmp_path: Path) -> None:
    path = written(tmp_path, "pipeline: alto\nstages:\n  voice:\n    max_num_seqs: 7\n")
    tenor, alto = plan(["tenor", "alto"], [path])
    assert tenor.stages["voice"].max_num_seqs != 7
    assert alto.stages["voice"].max_num_seqs == 7
    assert alto.stages["voice"].origins["max_num_seqs"] == f"{path}:4"


def test_a_deploy_file_without_effect_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "pipeline: alto\n")
    with pytest.raises(StreamSynthError, match="pipeline is 'alto'; it must be one of the models: tenor"):
        plan(["tenor"], [path])
    with pytest.raises(StreamSynthError, match="in one file only"):
        plan([], [path, written(tmp_path, "pipeline: alto\n", "again.yaml")])


def test_unknown_and_repeated_models_are_refused() -> None:
    listed = r"no model 'bass'; there are: tiny-speech, hibari, .*, alto, tenor"
    with pytest.raises(StreamSynthError, match=listed) as caught:
        plan(["bass"])
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND
    with pytest.raises(StreamSynthError, match="model is 'alto'; it must be given once"):
        plan(["alto", "alto"])


def test_set_overrides_the_file_and_reads_values_as_the_file_would(tmp_path: Path) -> None:
    path = written(tmp_path, "pipeline: alto\nstages:\n  voice: {max_num_seqs: 7, lead_seconds: 3}\n")
    (alto,) = plan([], [path], ["voice.max_num_seqs=9", "alto.voice.stall_timeout_s=1.5"])
    deployed = alto.stages["voice"]
    assert (deployed.max_num_seqs, deployed.lead_seconds, deployed.stall_timeout_s) == (9, 3, 1.5)
    assert deployed.origins["max_num_seqs"] == "--set"


@pytest.mark.parametrize(
    ("models", "text", "message"),
    [
        (["alto"], "threads=2", "STAGE.FIELD=VALUE or MODEL.STAGE.FIELD=VALUE"),
        (["alto"], "voice.threads", "STAGE.FIELD=VALUE"),
        (["alto"], ".threads=1", "STAGE.FIELD=VALUE"),
        (["alto"], "vocoder.threads=2", "for exactly one stage of: alto.voice"),
        (["alto"], "tenor.voice.threads=2", "for one of the models: alto"),
        (["tenor", "alto"], "voice.threads=2", "for exactly one stage of: tenor.voice, alto.voice"),
        (["alto"], "voice.threads=null", "threads is None"),
        (["alto"], "voice.threads=", "threads is ''"),
        (["alto"], "voice.threads=[", "--set voice.threads:1: expected the node content"),
        (["alto"], "voice.nothing=1", "stage voice of alto, --set: no field 'nothing'"),
    ],
)
def test_a_set_that_means_nothing_is_refused(models: list[str], text: str, message: str) -> None:
    with pytest.raises(StreamSynthError) as caught:
        plan(models, [], [text])
    assert message in str(caught.value)


def test_the_same_field_typed_twice_is_refused() -> None:
    with pytest.raises(StreamSynthError, match=r"given once for voice\.threads"):
        plan(["alto"], [], ["voice.threads=1", "voice.threads=2"])


@given(st.text() | st.builds("{}.{}={}".format, st.text(), st.text(), st.text()))
def test_nothing_that_is_typed_gives_anything_but_a_typed_error_of_one_line(text: str) -> None:
    with pytest.raises(StreamSynthError) as caught:
        plan(["alto"], [], [text])
    assert "\n" not in str(caught.value)
