"""Requests of an autoregressive stage: passages, segments, limits, credit, and pages that all come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from talker_batch import GREEDY, SMALL
from talker_requests import EOS, Words, engine, frames, run, speak, step

import streamsynth.engine.talker as talker_module
from streamsynth.engine.passage import Passage
from streamsynth.engine.runner import Drawing
from streamsynth.engine.sampler import SamplingParams
from streamsynth.engine.stream import Emission
from streamsynth.engine.talker import Talker, TalkerStream, rehearse
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.csm.random_weights import random_talker


@pytest.fixture(scope="module")
def model() -> CsmTalker:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    return random_talker(SMALL, head_gain=40.0)


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


def test_a_long_text_is_read_as_it_is_spoken_and_holds_up_nobody(model: CsmTalker) -> None:
    """Reading 64 Ki characters took 0.7 s, in which nobody else was spoken. Nor does the first frame wait for the
    second passage to be read.
    """
    talker = engine(model)
    reader = Words(max_frames=3)
    stream = talker.add(reader, GREEDY, 1000)
    stream.push("many " * 20)
    stream.finish()
    assert reader.taken == 1
    assert not stream.done
    emissions: list[Emission] = []
    while len(emissions) < 2:
        assert reader.taken == 1
        emissions += [emission for _, emission in step(talker, [stream])]
    assert reader.taken == 2
    emissions += run(talker, stream)[stream]
    assert reader.taken == 20
    assert [emission.segment for emission in emissions if emission.segment_final] == list(range(20))
    assert [emission.final for emission in emissions].count(True) == 1


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


def test_what_comes_before_a_refused_word_is_spoken_and_nothing_behind_it(model: CsmTalker) -> None:
    class Picky(Words):
        def take(self) -> Passage | None:
            passage = super().take()
            if passage is not None and passage.text == "bad":
                raise StreamSynthError(ErrorCode.UNSUPPORTED_LANGUAGE, "bad")
            return passage

    talker = engine(model)
    stream = talker.add(Picky(), GREEDY, 1000)
    stream.push("one bad")
    stream.push(" two")
    texts, ended = [], None
    while ended is None:
        assert stream.wake_at() is not None
        for _, made in talker.step([stream]).made:
            if isinstance(made, StreamSynthError):
                ended = made
            elif made.segment_text:
                texts.append(made.segment_text)
    assert texts == ["one"]
    assert ended.code is ErrorCode.UNSUPPORTED_LANGUAGE
    stream.close()
    assert talker.counters()["free_pages"] == 199


def test_pauses_stand_behind_passages_and_count_as_frames(model: CsmTalker) -> None:
    def spoken(limit: int) -> list[Emission]:
        talker = engine(model)
        stream = talker.add(Words(pause=7), GREEDY, limit)
        stream.push("one two")
        stream.finish()
        return run(talker, stream)[stream]

    whole = spoken(1000)
    assert [emission.pause for emission in whole if emission.segment_final] == [7, 7]
    assert sum(emission.pause for emission in whole) == 14
    first = sum(len(emission.media) for emission in whole if emission.segment == 0)
    cut = spoken(first + 3)
    assert (len(frames(cut)), cut[-1].pause) == (first, 3)
    assert (cut[-1].final, cut[-1].segment_final, cut[-1].finish_reason) == (True, True, "length")


@pytest.mark.slow
def test_ten_thousand_short_requests_leave_every_page_free(model: CsmTalker) -> None:
    """S27: some are aborted at a random point; the pool is checked whenever nothing runs."""
    talker = engine(model, pages=24, rows=16)
    random = np.random.default_rng(1)
    living: list[TalkerStream] = []
    opened = 0
    while opened < 10_000 or living:
        while opened < 10_000 and len(living) < 16:
            opened += 1
            living.append(speak(talker, "abcdefg", seed=opened, max_frames=1 + opened % 3))
            living[-1].finish()
        if random.random() < 0.3 or opened == 10_000:
            living.pop(int(random.integers(len(living)))).close()
        step(talker, living)
    counters = talker.counters()
    assert (counters["live"], counters["free_pages"]) == (0, 23)


def test_requests_that_are_preempted_and_aborted_leave_every_page_free(model: CsmTalker) -> None:
    """S25, S27: they grow until there are no pages; what was preempted says the same as undisturbed."""
    on_and_on = {0: torch.arange(SMALL.vocab_size) != EOS}

    def long_speech(talker: Talker, seed: int) -> TalkerStream:
        sampling = SamplingParams(top_k=20, seed=seed)
        drawing = Drawing(first=sampling, rest=sampling, allowed=on_and_on)
        stream = talker.add(Words(max_frames=30), drawing, 1000)
        stream.push("abcdefg")
        stream.finish()
        return stream

    talker = engine(model, pages=9, rows=8)
    streams = [long_speech(talker, seed) for seed in range(4)]
    made: dict[TalkerStream, list[Emission]] = {stream: [] for stream in streams}
    while talker.counters()["preemptions"] == 0:
        for stream, emission in step(talker, streams):
            made[stream].append(emission)
    streams.pop(1).close()
    for stream, emissions in run(talker, *streams).items():
        made[stream] += emissions
    counters = talker.counters()
    assert (counters["live"], counters["free_pages"]) == (0, 8)
    for seed, stream in zip((0, 2, 3), streams, strict=True):
        undisturbed = engine(model)
        alone = long_speech(undisturbed, seed)
        np.testing.assert_array_equal(frames(made[stream]), frames(run(undisturbed, alone)[alone]))


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


@pytest.mark.parametrize(("fast", "most"), [(False, 0), (True, 1)])
def test_of_what_is_cancelled_only_the_frame_under_way_is_still_drawn(model: CsmTalker, fast: bool, most: int) -> None:
    """Design section 2: at most the step in flight and one launched ahead, whose frames nobody gets."""
    talker = engine(model, fast=fast)
    other = speak(talker, "z", max_frames=200)
    for steps in range(1, 12):
        cancelled = speak(talker, "abc", max_frames=50)
        for _ in range(steps):
            talker.step([other, cancelled])
        before = talker.counters()["late_frames"]
        cancelled.close()
        for _ in range(3):
            assert all(stream is other for stream, _ in talker.step([other]).made)
        assert talker.counters()["late_frames"] - before <= most


def test_who_is_far_ahead_leaves_the_device_free_between_its_steps(
    model: CsmTalker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that comes then waits for one step, not for two."""
    monkeypatch.setattr(talker_module.time, "monotonic", lambda: 5.0)
    talker = engine(model, fast=True)
    stream = speak(talker, " ".join("abcdefgh" * 20))
    stream.finish()
    near: list[int] = []
    far: list[int] = []
    while stream.frames < 2 * talker_module.RELAXED_LEAD_S * 25:
        assert not any(made.final for _, made in step(talker, [stream]))
        if stream.gang is not None:
            is_far = stream.frames >= talker_module.RELAXED_LEAD_S * 25
            (far if is_far else near).append(stream.gang.launched - stream.gang.drawn)
    assert set(near) == {1}
    assert set(far[1:]) == {0, 1}
    stream.close()


def test_a_rehearsal_times_one_request_and_several_and_leaves_every_page_free(model: CsmTalker) -> None:
    talker = engine(model)
    tried = rehearse(talker, lambda: speak(talker, "abcdef ghijkl mnopqr", max_frames=40), frame_s=0.04)
    assert [each.sharers for each in tried] == [1, 4]
    assert 0 < tried[0].media_s <= 0.16
    assert tried[1].media_s == pytest.approx(4 * tried[0].media_s)
    assert all(each.work_s > 0 for each in tried)
    assert talker.counters()["free_pages"] == 199
