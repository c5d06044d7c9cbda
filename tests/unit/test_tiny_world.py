"""The embedded video model: small, refuses what its world has not, and shows what it is asked for, also under way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from train_tiny_world.judge import Judge
from train_tiny_world.score import change_followed, open_video, prompts_followed, seen_at_the_end, shipped_judge, watch

from streamsynth.config.unset import UNSET
from streamsynth.engine.rollout.engine import RolloutEngine
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Interaction, Kv
from streamsynth.models.tiny_world.engine import chosen_dtype, load_rollouts, weights_folder
from streamsynth.models.tiny_world.pipeline import TINY_WORLD
from streamsynth.models.tiny_world.prompts import WorldPrompts
from streamsynth.models.tiny_world.reading import parse
from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from streamsynth.models.wan.prompts import load_prompt_encoder

FIRST = "a red ball bouncing over a green meadow by day, clear sky"
BLUE = "two blue squares growing in the desert at night in fog"


@pytest.fixture(scope="module")
def engine() -> Iterator[RolloutEngine]:
    torch.set_num_threads(1)
    said = {name: value for name, value in TINY_WORLD.stages[0].options.items() if value is not UNSET}
    yield load_rollouts(**said)


@pytest.fixture(scope="module")
def judge() -> Judge:
    return shipped_judge()


def test_what_is_shipped_stays_below_40_megabytes() -> None:
    assert sum(file.stat().st_size for file in weights_folder().rglob("*") if file.is_file()) < 40e6


def test_a_video_shows_what_was_asked_for_and_then_what_it_was_changed_to(engine: RolloutEngine, judge: Judge) -> None:
    """Two at once, each steered for itself; what a change does not speak of stays."""
    streams = [open_video(engine, FIRST, 1), open_video(engine, BLUE, 1)]
    red, blue = watch(engine, streams, 6)
    assert seen_at_the_end(judge, red) == parse(FIRST).values
    assert seen_at_the_end(judge, blue)["colour"] == "blue"
    streams[0].interact(Interaction("e", {"prompt": "snow falls"}, transition_chunks=0, kv=Kv.KEEP))
    red, blue = watch(engine, streams, 8)
    assert seen_at_the_end(judge, red) == parse(FIRST).values | {"weather": "snow"}
    assert seen_at_the_end(judge, blue)["weather"] == "fog"
    for stream in streams:
        stream.close()


def test_the_same_seed_makes_the_same_video_and_another_seed_another(engine: RolloutEngine) -> None:
    first, again, other = (watch(engine, [open_video(engine, FIRST, seed)], 2)[0] for seed in (5, 5, 6))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_what_a_first_prompt_leaves_out_the_seed_chooses_and_what_a_later_one_leaves_out_stays() -> None:
    prompts = WorldPrompts(load_prompt_encoder(weights_folder() / "text_encoder", weights_folder() / "tokenizer"))
    first = prompts.in_full("a red ball", None, seed=3)
    values = parse(first).values
    assert values.keys() == ATTRIBUTES.keys()
    assert (values["count"], values["colour"], values["shape"]) == ("one", "red", "ball")
    assert prompts.in_full("a red ball", None, seed=3) == first
    assert len({prompts.in_full("a red ball", None, seed=seed) for seed in range(20)}) > 10
    assert parse(prompts.in_full("now at night", first, seed=9)).values == values | {"time": "night"}
    assert prompts.in_full(FIRST, first, seed=9) == FIRST


def test_things_in_the_plural_are_never_one() -> None:
    prompts = WorldPrompts(load_prompt_encoder(weights_folder() / "text_encoder", weights_folder() / "tokenizer"))
    counts = {parse(prompts.in_full("red balls", None, seed)).values["count"] for seed in range(20)}
    assert counts == {"two", "three"}
    three = "three red balls bouncing over a meadow, by day, clear sky"
    assert {parse(prompts.in_full("stars", FIRST, seed)).values["count"] for seed in range(20)} == counts
    assert parse(prompts.in_full("stars", three, seed=1)).values == parse(three).values | {"shape": "star"}
    assert parse(prompts.in_full("a star", three, seed=1)).values["count"] == "one"


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("an elephant over the sea", "elephant"),
        ("no rain", "prompt says 'no', which this model does not know"),
        ("a red-5 ball", "red-5"),
        ("a 5-star over \u7ea2-red", "5-star, \u7ea2-red"),
        ("\U0001f409 over a meadow", "\U0001f409"),
        ("x" * 4000, r"x\.\.\., which"),
        ("the picture turns", "prompt is"),
    ],
)
def test_what_the_world_has_not_is_refused_by_name(engine: RolloutEngine, prompt: str, named: str) -> None:
    with pytest.raises(StreamSynthError, match=named) as caught:
        open_video(engine, prompt, 1)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "prompt")


def test_every_word_that_a_refusal_lists_is_taken_alone_and_with_others() -> None:
    """Alone for its phrase, which is what the model reads: it was taught no bare "left"."""
    prompts = WorldPrompts(load_prompt_encoder(weights_folder() / "text_encoder", weights_folder() / "tokenizer"))
    with pytest.raises(StreamSynthError) as refused:
        prompts.in_full("a dragon", None, seed=1)
    listed = [group.split() for group in refused.value.message.partition("it knows: ")[2].split("; ")]
    assert listed == [list(values) for values in ATTRIBUTES.values()]
    for attribute, values in zip(ATTRIBUTES, listed, strict=True):
        for word in values:
            assert parse(prompts.in_full(word, FIRST, seed=1)).values == parse(FIRST).values | {attribute: word}
            together = [word if name == attribute else first[0] for name, first in ATTRIBUTES.items()]
            full = prompts.in_full(" ".join(together), None, seed=1)
            assert parse(full).values == dict(zip(ATTRIBUTES, together, strict=True))
            assert not parse(full).short
    assert "moving right" in prompts.in_full("right", FIRST, seed=1)


@pytest.mark.parametrize(
    ("prompt", "unknown"), [("right now it snows", ("right",)), ("a ball on the left of the sea", ("left",))]
)
def test_a_bare_word_that_may_mean_another_thing_is_unknown(prompt: str, unknown: tuple[str, ...]) -> None:
    assert parse(prompt).unknown == unknown


def test_punctuation_says_nothing() -> None:
    assert parse("A red ball - over the sea; at night!\0") == parse("a red ball over the sea at night")


def test_the_number_format_is_the_fastest_of_the_device() -> None:
    matrix_units = torch.cpu.get_capabilities()["amx_bf16"]
    assert chosen_dtype("auto", "cpu") == (torch.bfloat16 if matrix_units else torch.float32)
    assert chosen_dtype("float32", "cpu") == torch.float32
    with pytest.raises(StreamSynthError, match="dtype is 'float64'; it must be auto, float32 or bfloat16"):
        chosen_dtype("float64", "cpu")


def test_no_worker_imports_a_compiler_to_load_its_weights() -> None:
    """torch's would take over a second of every start."""
    program = """
import sys, torch
from streamsynth.models.csm.weights import load_talker
from streamsynth.models.tiny_speech.places import weights_folder as speech
from streamsynth.models.tiny_world.engine import load_world, weights_folder as world
load_talker(speech() / "talker")
load_world(world())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_prompts_are_followed(engine: RolloutEngine, judge: Judge) -> None:
    """Each attribute in at least 85% of 96 clips of four seconds, as the judge reads their last second."""
    shares = prompts_followed(engine, judge, clips=96, seed=11)
    assert min(shares.values()) >= 0.85, shares


@pytest.mark.slow
@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_change_of_one_attribute_is_seen_within_two_seconds_and_leaves_the_others(
    engine: RolloutEngine, judge: Judge, attribute: str
) -> None:
    """Of 16 videos, by prompts that say nothing else."""
    found = change_followed(engine, judge, attribute, clips=16, seed=5)
    assert found.median_chunks <= 4 and found.seen >= 0.75 and found.kept >= 0.9, found
