"""Requests of an autoregressive stage: passages, segments, limits, credit, and pages that all come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from talker_batch import GREEDY, PAGE_SIZE, SMALL, captured, prompt

import streamsynth.engine.talker as talker_module
from streamsynth.engine.attention import PageMemory
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Drawing, Runner
from streamsynth.engine.sampler import SamplingParams
from streamsynth.engine.stream import Emission
from streamsynth.engine.talker import Passage, Talker, TalkerStream
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.csm.random_weights import random_talker

EOS = SMALL.eos_code


class Words:
    """A reader for which each word is a passage and a segment; a word is its letters, and ten frames at most."""

    def __init__(self, max_frames: int = 10, guided: bool = False) -> None:
        self.max_frames = max_frames
        self.guided = guided
        self.words: list[str] = []
        self.taken = 0
        self.finished = False

    def push(self, text: str) -> None:
        self.words += text.split()

    def finish(self) -> None:
        self.finished = True

    @property
    def exhausted(self) -> bool:
        return self.finished and self.taken == len(self.words)

    def take(self) -> Passage | None:
        if self.taken == len(self.words):
            return None
        word = self.words[self.taken]
        self.taken += 1
        said = prompt([ord(letter) % 50 + 1 for letter in word])
        return Passage(
            prompts=[said, prompt([1, 2])] if self.guided else [said],
            max_frames=self.max_frames,
            segment=self.taken - 1,
            text=word,
            ends_segment=True,
        )


@pytest.fixture(scope="module")
def model() -> CsmTalker:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    return random_talker(SMALL, head_gain=40.0)


def engine(model: CsmTalker, *, pages: int = 200, rows: int = 8, fast: bool = False) -> Talker:
    backbone = model.config.backbone
    memory = PageMemory(
        layers=backbone.layers,
        pages=pages,
        page_size=PAGE_SIZE,
        kv_heads=backbone.kv_heads,
        head_dim=backbone.head_dim,
        like=model.projector.weight,
    )
    planner = Planner(PagePool(pages), page_size=PAGE_SIZE, max_rows=rows, max_tokens=32)
    runner = captured()(model, memory) if fast else Runner(model, memory)
    return Talker(runner, planner, page_size=PAGE_SIZE, rate=25, codebooks=4, eos=EOS)


def speak(
    talker: Talker, text: str, *, limit: int = 1000, max_frames: int = 10, guided: bool = False, seed: int = 3
) -> TalkerStream:
    sampling = SamplingParams(top_k=20, seed=seed)
    drawing = Drawing(first=sampling, rest=sampling, scale=1.5 if guided else 1.0)
    stream = talker.add(Words(max_frames, guided), drawing, limit)
    stream.push(text)
    return stream


def run(talker: Talker, *streams: TalkerStream, steps: int = 10_000) -> dict[TalkerStream, list[Emission]]:
    """Step those of the streams that can, until all have ended."""
    made: dict[TalkerStream, list[Emission]] = {stream: [] for stream in streams}
    living = list(streams)
    while living and steps:
        steps -= 1
        ready = [stream for stream in living if stream.wake_at() is not None]
        if not ready:
            break
        for stream, emission in talker.step(ready).made:
            assert isinstance(stream, TalkerStream)
            assert isinstance(emission, Emission), emission
            made[stream].append(emission)
            if emission.final:
                living.remove(stream)
                stream.close()
    return made


def frames(emissions: list[Emission]) -> np.ndarray:
    return np.concatenate([emission.media for emission in emissions])


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
def test_each_passage_is_a_segment_with_its_text_once_and_one_end(model: CsmTalker, fast: bool) -> None:
    talker = engine(model, fast=fast)
    stream = speak(talker, "one two three")
    stream.finish()
    made = run(talker, stream)[stream]
    assert [emission.segment_text for emission in made if emission.segment_text] == ["one", "two", "three"]
    assert [emission.segment for emission in made if emission.segment_final] == [0, 1, 2]
    assert [emission.final for emission in made].count(True) == 1
    assert made[-1].final
    assert frames(made).shape[1] == 4
    assert not (frames(made)[:, 0] == EOS).any()


def test_a_request_draws_the_same_alone_and_in_company(model: CsmTalker) -> None:
    alone = engine(model)
    lone = speak(alone, "hello there", seed=9)
    lone.finish()
    expected = frames(run(alone, lone)[lone])
    talker = engine(model)
    streams = [speak(talker, "hello there", seed=9), *(speak(talker, "a b c d e", seed=n) for n in range(5))]
    for stream in streams:
        stream.finish()
    np.testing.assert_array_equal(frames(run(talker, *streams)[streams[0]]), expected)


def test_text_that_comes_later_is_spoken_as_if_it_had_been_there(model: CsmTalker) -> None:
    whole = engine(model)
    at_once = speak(whole, "one two")
    at_once.finish()
    expected = frames(run(whole, at_once)[at_once])
    talker = engine(model)
    stream = speak(talker, "one")
    made = run(talker, stream)[stream]
    stream.push(" two")
    made += run(talker, stream)[stream]
    stream.finish()
    made += run(talker, stream)[stream]
    np.testing.assert_array_equal(frames(made), expected)
    assert made[-1].final


def test_a_passage_that_does_not_end_by_itself_is_cut_and_said_to_be(model: CsmTalker) -> None:
    """S65: a cap by length, and the finish reason `length`."""
    talker = engine(model)
    stream = talker.add(Words(max_frames=3), GREEDY, 1000)
    stream.push("word")
    stream.finish()
    made = run(talker, stream)[stream]
    assert len(frames(made)) <= 3
    if len(frames(made)) == 3:
        assert made[-1].finish_reason == "length"


def test_a_limit_on_frames_ends_the_request_exactly_there(model: CsmTalker) -> None:
    talker = engine(model)
    stream = speak(talker, "many words to say here", limit=4)
    stream.finish()
    made = run(talker, stream)[stream]
    assert len(frames(made)) == 4
    assert (made[-1].final, made[-1].segment_final, made[-1].finish_reason) == (True, True, "length")


def test_a_request_that_can_never_fit_fails_alone(model: CsmTalker) -> None:
    talker = engine(model, pages=6)
    small, large = speak(talker, "ab", max_frames=5), speak(talker, "x" * 60)
    for stream in (small, large):
        stream.finish()
    result = dict(talker.step([small, large]).made)
    error = result[large]
    assert isinstance(error, StreamSynthError)
    assert error.code is ErrorCode.INVALID_VALUE
    large.close()
    assert run(talker, small)[small][-1].final


@pytest.mark.parametrize("guided", [False, True])
def test_requests_that_do_not_fit_together_take_turns(model: CsmTalker, guided: bool) -> None:
    talker = engine(model, pages=14, rows=4)
    streams = [speak(talker, "abcdef ghijkl", seed=n, guided=guided) for n in range(5)]
    for stream in streams:
        stream.finish()
    made = run(talker, *streams)
    assert all(emissions[-1].final for emissions in made.values())
    counters = talker.counters()
    assert (counters["live"], counters["free_pages"]) == (0, 13)


def test_a_request_without_credit_gives_its_pages_back_and_goes_on_later(
    model: CsmTalker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(talker_module.time, "monotonic", lambda: now)
    talker = engine(model)
    paused, other = speak(talker, "abcdefgh", max_frames=30), speak(talker, "zz " * 40)
    for stream in (paused, other):
        stream.finish()
    began = [made for _ in range(5) for stream, made in talker.step([paused, other]).made if stream is paused]
    free = talker.counters()["free_pages"]
    now += 1.9
    talker.step([other])
    assert talker.counters()["free_pages"] <= free
    now += 0.2
    talker.step([other])
    assert paused.gang is not None
    assert not paused.gang.holds_pages
    made = [emission for emission in began if isinstance(emission, Emission)] + run(talker, paused)[paused]
    undisturbed = engine(model)
    alone = speak(undisturbed, "abcdefgh", max_frames=30)
    alone.finish()
    np.testing.assert_array_equal(frames(made), frames(run(undisturbed, alone)[alone]))


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
def test_aborts_at_random_points_leave_every_page_free(model: CsmTalker, fast: bool) -> None:
    """S25, S27: the pool is checked whenever nothing runs."""
    talker = engine(model, pages=40, fast=fast)
    random = np.random.default_rng(0)
    living: list[TalkerStream] = []
    for number in range(200):
        if random.random() < 0.3:
            living.append(speak(talker, "some words", seed=number))
            living[-1].finish()
        if living and random.random() < 0.25:
            living.pop(int(random.integers(len(living)))).close()
        if living:
            for stream, made in talker.step(living).made:
                assert isinstance(made, Emission)
                if made.final and isinstance(stream, TalkerStream):
                    living.remove(stream)
                    stream.close()
    for stream in living:
        stream.close()
    counters = talker.counters()
    assert (counters["live"], counters["free_pages"]) == (0, 39)
