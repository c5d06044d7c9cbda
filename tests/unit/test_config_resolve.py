"""Fields find their owner, the nearest writer wins, and whatever would have no effect is refused by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.config.concerns import CONCERNS, OWNERS, RuntimeConfig, SchedulerConfig
from streamsynth.config.deployment import StageDeployment, check_threads
from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.config.registry import find_pipeline, pipelines
from streamsynth.config.resolve import Layer, Setting, resolve
from streamsynth.config.unset import UNSET
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.speech import SpeechTraits, Voice

TRAITS = SpeechTraits(sample_rate=24000, voices=(Voice(id="a", name="A", languages=("en",)),), default_voice="a")


def stage(name: str = "voice", **fields: Any) -> Stage:
    declared = {"options": {"phonemes": 300, "gain": 0.5, "style": None, "model_dir": UNSET, "trim": True}, **fields}
    return Stage(name=name, kind=StageKind.GENERATION, engine="package.module:Class", **declared)


def pipeline(*stages: Stage) -> Pipeline:
    chosen = stages or (stage(),)
    return Pipeline(name="test", description="", stages=chosen, output=chosen[-1].name, traits=TRAITS)


def layer(origin: str = "deploy.yaml:3", /, **fields: Any) -> Layer:
    return {"voice": {name: Setting(value, origin) for name, value in fields.items()}}


def voice(**layers: Layer) -> StageDeployment:
    return resolve(pipeline(), **layers).stages["voice"]


def test_a_stage_that_nobody_configures_has_every_default() -> None:
    """T1.1"""
    deployed = voice()
    assert (deployed.threads, deployed.max_num_seqs, deployed.lead_seconds) == (1, 256, 10.0)
    assert (deployed.start_timeout_s, deployed.heartbeat_timeout_s, deployed.stall_timeout_s) == (60.0, 15.0, 30.0)


def test_only_explicit_options_are_sent_to_the_engine() -> None:
    """T1.5: what nobody set stays the engine's own decision."""
    assert voice().options == {"phonemes": 300, "gain": 0.5, "style": None, "trim": True}
    assert voice(file=layer(model_dir="/m")).options["model_dir"] == "/m"


def test_an_explicit_null_is_a_value_and_an_absent_field_is_not() -> None:
    """CFGS: UNSET differs from null."""
    assert "model_dir" not in voice().options
    assert voice(file=layer(model_dir=None)).options["model_dir"] is None
    with pytest.raises(StreamSynthError, match="threads is None; it must be a whole number from 1 to 1024"):
        voice(file=layer(threads=None))


@given(
    typed=st.none() | st.integers(1, 9),
    filed=st.none() | st.integers(1, 9),
    declared=st.none() | st.integers(1, 9),
)
def test_command_line_wins_over_file_over_pipeline_over_default(
    typed: int | None, filed: int | None, declared: int | None
) -> None:
    """T1.19 and section 1.5: a layer that does not set the field overrides nothing."""
    model = pipeline(stage(settings={} if declared is None else {"threads": declared}))
    deployed = resolve(
        model,
        file=None if filed is None else layer(threads=filed),
        command_line=None if typed is None else layer("--set", threads=typed),
    ).stages["voice"]
    expected = next(
        (value, origin)
        for value, origin in ((typed, "--set"), (filed, "deploy.yaml:3"), (declared, "pipeline"), (1, "default"))
        if value is not None
    )
    shown = next(field for field in deployed.effective_fields() if field.name == "threads")
    assert (deployed.threads, shown.origin) == expected
    assert shown.value == deployed.threads


def test_a_false_that_somebody_wrote_is_not_mistaken_for_nothing() -> None:
    """T1.19: falsy values override like any other."""
    assert voice(file=layer(trim=False)).options["trim"] is False
    assert voice(file=layer(phonemes=1), command_line=layer("--set", phonemes=0)).options["phonemes"] == 0


def test_an_unknown_field_names_stage_field_place_and_the_nearest_name() -> None:
    """T1.3, DEP-3"""
    with pytest.raises(StreamSynthError) as caught:
        voice(file=layer(thread=2))
    assert caught.value.code is ErrorCode.UNKNOWN_FIELD
    assert caught.value.param == "voice.thread"
    assert str(caught.value) == "stage voice of test, deploy.yaml:3: no field 'thread'; did you mean threads?"


def test_an_option_of_another_stage_is_not_accepted() -> None:
    """An option is owned by the stage that declares it, and by no other."""
    model = pipeline(stage(), stage("other", options={"depth": 2}, inputs=("voice",)))
    with pytest.raises(StreamSynthError, match=r"stage voice of test.*no field 'depth'"):
        resolve(model, file=layer(depth=3))


def test_an_unknown_stage_is_refused_with_those_that_exist() -> None:
    with pytest.raises(StreamSynthError, match="'vocoder'; it must be one of: voice"):
        resolve(pipeline(), file={"vocoder": {}})


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("threads", [1, 1024], [0, 1025, -1, 1.0, True, "2", float("nan")]),
        ("devices", [[], [0], [3, 1]], [0, "0,1", [0, 0], [-1], [True], ["0"], [1.0], None]),
        ("max_num_seqs", [1, 65536], [0, 65537, 2.5, False]),
        ("max_queued", [0, 65536], [-1, 65537, None]),
        ("queue_timeout_s", [0, 3600], [-0.1, 3601, "1"]),
        ("max_load", [0.05, 0.85, 1], [0, 0.04, 1.01, float("nan"), True, "1"]),
        ("lead_seconds", [0.02, 1, 600], [0, 0.01, 601, float("nan"), float("inf"), True, "1"]),
        ("start_timeout_s", [0.1, 3600], [0, 3601, None]),
        ("heartbeat_timeout_s", [0.1, 3600], [0, -1, [1]]),
        ("stall_timeout_s", [0.1, 3600], [0, 1e9, {}]),
    ],
)
def test_values_at_the_limit_pass_and_those_beyond_it_are_named(
    name: str, inside: list[Any], outside: list[Any]
) -> None:
    """T1.20, CFGS-11: the message shows the value and the limit."""
    for value in inside:
        assert getattr(voice(file=layer(**{name: value})), name) == value
    for value in outside:
        with pytest.raises(StreamSynthError) as caught:
            voice(file=layer(**{name: value}))
        assert caught.value.code is ErrorCode.INVALID_VALUE
        assert caught.value.param == f"voice.{name}"
        assert f"{name} is {value!r}; it must be" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("phonemes", "300"), ("phonemes", 3.0), ("phonemes", True), ("phonemes", None), ("trim", 1), ("gain", "loud")],
)
def test_an_option_keeps_the_type_it_was_declared_with(name: str, value: object) -> None:
    """T1.12: refused when configured, not when the engine starts."""
    with pytest.raises(StreamSynthError, match=f"{name} is .*; it must be of type"):
        voice(file=layer(**{name: value}))


def test_a_whole_number_is_accepted_for_an_option_that_is_a_fraction() -> None:
    assert voice(file=layer(gain=1)).options["gain"] == 1


@pytest.mark.parametrize("value", [2**63, {1, 2}, object(), {1: 2}, [b"raw"]])
def test_an_option_that_msgpack_cannot_carry_is_refused(value: object) -> None:
    """T1.9: nothing but plain data reaches the worker."""
    with pytest.raises(StreamSynthError, match="it must be plain data"):
        voice(file=layer(style=value))


@pytest.mark.parametrize("name", pipelines())
def test_every_shipped_pipeline_resolves_to_a_payload_that_msgpack_carries(name: str) -> None:
    """T1.9"""
    for deployed in resolve(find_pipeline(name)).stages.values():
        concerns = {field: getattr(deployed, field) for field in OWNERS}
        payload = {**concerns, "engine": deployed.stage.engine, "options": dict(deployed.options)}
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(payload)) == payload


def test_each_field_has_one_owner() -> None:
    names = [field.name for owner in CONCERNS.values() for field in dataclasses.fields(owner)]
    assert len(names) == len(set(names)) == len(OWNERS)


def test_a_declared_option_may_not_take_the_name_of_a_field() -> None:
    """T1.7: such an option would have two owners."""
    with pytest.raises(
        StreamSynthError, match="option of stage voice is 'threads'; it must be no field of the runtime"
    ):
        stage(options={"threads": 1})


def test_a_pipeline_setting_must_be_a_field() -> None:
    with pytest.raises(StreamSynthError, match="setting of stage voice is 'phonemes'; it must be one of threads"):
        stage(settings={"phonemes": 1})


@pytest.mark.parametrize("owner", [RuntimeConfig, SchedulerConfig, StageDeployment])
def test_construction_is_by_keyword_only(owner: type) -> None:
    """T1.8, CFGS-2"""
    kinds = {parameter.kind for parameter in inspect.signature(owner).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    with pytest.raises(TypeError):
        owner(1)


@pytest.mark.parametrize(
    ("stages", "output", "message"),
    [
        ((stage(), stage()), "voice", "stage name in pipeline p is 'voice'; it must be used once"),
        ((stage(),), "out", "output of pipeline p is 'out'; it must be one of its stages: voice"),
        ((stage(inputs=("text",)),), "voice", "input of stage voice is 'text'; it must be one of: voice"),
        ((stage("a", inputs=("b",)), stage("b", inputs=("a",))), "a", "it must be free of cycles"),
    ],
)
def test_a_pipeline_that_is_no_graph_is_refused_where_it_is_declared(
    stages: tuple[Stage, ...], output: str, message: str
) -> None:
    with pytest.raises(StreamSynthError, match=message):
        Pipeline(name="p", description="", stages=stages, output=output, traits=TRAITS)


def test_thread_budgets_add_up_to_at_most_the_cores_but_every_worker_has_one() -> None:
    two = [resolve(pipeline()), resolve(pipeline(), file=layer(threads=3))]
    check_threads(two, cores=4)
    check_threads([two[0], two[0], two[0]], cores=1)
    with pytest.raises(StreamSynthError, match=r"threads is 4; it must be at most 3 in all.*\(voice 1 \+ voice 3\)"):
        check_threads(two, cores=3)


def test_resolution_leaves_the_declaration_alone() -> None:
    """T1.13: what one deployment sets is not seen by the next."""
    model = pipeline()
    before: Mapping[str, object] = dict(model.stages[0].options)
    resolve(model, file=layer(phonemes=1))
    assert resolve(model).stages["voice"].options["phonemes"] == 300
    assert model.stages[0].options == before
