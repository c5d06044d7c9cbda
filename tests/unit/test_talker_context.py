"""Passages that go on from one another: what stands before each, whatever else runs, waits or is thrown out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from talker_batch import PAGE_SIZE, SMALL, Batch
from talker_requests import EOS, ROW_POSITIONS, Words, engine, frames, run, speak, step

from streamsynth.engine.passage import Context, Passage
from streamsynth.engine.runner import Drawing, FrameGang
from streamsynth.engine.sampler import SamplingParams
from streamsynth.engine.stream import Emission
from streamsynth.engine.talker import TalkerStream
from streamsynth.errors import StreamSynthError
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.csm.random_weights import random_talker

TEXT = "abc defgh ijklmnopq tuv wxyz"
MAX_FRAMES = 40
CONTEXT = 32


@pytest.fixture(scope="module")
def model() -> CsmTalker:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    return random_talker(SMALL, head_gain=40.0)


def plainly(model: CsmTalker, seed: int, *, guided: bool, most: int = CONTEXT) -> tuple[np.ndarray, list[int]]:
    """TEXT's frames, passage after passage, each as one sequence computed for itself alone, and how long what stood
    before each was."""
    sampling = SamplingParams(top_k=20, seed=seed)
    drawing = Drawing(first=sampling, rest=sampling, scale=1.5 if guided else 1.0)
    reader = Words(MAX_FRAMES, guided)
    reader.push(TEXT)
    said = torch.empty(0, 1 + model.codebooks, dtype=torch.int64)
    spoken: list[list[int]] = []
    behind = []
    for passage in iter(reader.take, None):
        behind.append(len(said))
        prompts = [torch.cat((said, prompt)) for prompt in passage.prompts]
        batch = Batch(model)
        gang = FrameGang.of(prompts, drawing, PAGE_SIZE, first_frame=len(spoken))
        drawn = batch.frames[gang] = []
        while len(drawn) < MAX_FRAMES and not (drawn and int(drawn[-1][0]) == EOS):
            batch.step()
        ended = int(drawn[-1][0]) == EOS
        real = [frame.tolist() for frame in (drawn[:-1] if ended else drawn)]
        spoken += real
        chain = torch.tensor([*passage.prompts[0].tolist(), *([-1, *frame] for frame in real)])
        said = chain if real and ended and len(chain) <= most else said[:0]
    return np.array(spoken), behind


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("guided", [False, True], ids=["lone", "guided"])
def test_each_passage_goes_on_from_the_one_before_alone_and_beside_others(
    model: CsmTalker, guided: bool, fast: bool
) -> None:
    """The row that guidance steers away from has the same before it: the words of the passage before, too."""
    talker = engine(model, gang_rows=1 + guided, fast=fast, context=CONTEXT)
    streams = [speak(talker, TEXT, seed=seed, guided=guided, max_frames=MAX_FRAMES) for seed in range(3)]
    for stream in streams:
        stream.finish()
    made = run(talker, *streams)
    lengths = []
    for seed, stream in enumerate(streams):
        expected, behind = plainly(model, seed, guided=guided)
        np.testing.assert_array_equal(frames(made[stream]), expected)
        lengths += behind
    assert sum(length > PAGE_SIZE for length in lengths) > 2, "the check needs passages that go on from others"
    assert sum(length == 0 for length in lengths) > 3, "and some behind what was too long, or did not end by itself"


def test_requests_that_go_on_and_requests_that_do_not_share_a_batch(model: CsmTalker) -> None:
    talker = engine(model, context=CONTEXT)
    many, *lone = [speak(talker, text, seed=0, max_frames=MAX_FRAMES) for text in (TEXT, "abc", "abc defgh")]
    for stream in (many, *lone):
        stream.finish()
    made = run(talker, many, *lone)
    whole = plainly(model, 0, guided=False)[0]
    np.testing.assert_array_equal(frames(made[many]), whole)
    for stream in lone:
        spoken = frames(made[stream])
        np.testing.assert_array_equal(spoken, whole[: len(spoken)])


def test_a_passage_is_preempted_and_goes_on_with_what_stood_before_it(model: CsmTalker) -> None:
    talker = engine(model, pages=32, context=CONTEXT)
    stream = speak(talker, TEXT, seed=5, guided=True, max_frames=MAX_FRAMES)
    stream.finish()
    made: list[Emission] = []
    released = 0
    while not made or not made[-1].final:
        made += [emission for _ in range(5) if not stream.done for _, emission in step(talker, [stream])]
        if stream.gang is not None and stream.passage is not None:
            released += len(stream.gang.prompts[0]) > len(stream.passage.prompts[0])
            talker._planner.release(stream.gang)
    assert released > 2, "the check needs releases within passages that go on"
    np.testing.assert_array_equal(frames(made), plainly(model, 5, guided=True)[0])


def test_requests_that_crowd_each_other_out_say_the_same_and_leave_every_page_free(model: CsmTalker) -> None:
    """S25, S27, with next to no pages."""
    talker = engine(model, pages=28, context=CONTEXT)
    streams = [speak(talker, TEXT, seed=seed, guided=True, max_frames=MAX_FRAMES) for seed in range(3)]
    for stream in streams:
        stream.finish()
    made = run(talker, *streams)
    counters = talker.counters()
    assert counters["preemptions"] > 0
    assert (counters["live"], counters["free_pages"]) == (0, 27)
    for seed, stream in enumerate(streams):
        np.testing.assert_array_equal(frames(made[stream]), plainly(model, seed, guided=True)[0])


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
def test_aborts_at_random_points_leave_every_page_free(model: CsmTalker, fast: bool) -> None:
    """S25, S27: the pool is checked whenever nothing runs."""
    talker = engine(model, pages=60, gang_rows=2, fast=fast, context=CONTEXT)
    random = np.random.default_rng(0)
    living: list[TalkerStream] = []
    for number in range(300):
        if len(living) < 4 and random.random() < 0.3:
            living.append(speak(talker, TEXT, seed=number % 3, guided=True, max_frames=MAX_FRAMES))
            living[-1].finish()
        if living and random.random() < 0.05:
            living.pop(int(random.integers(len(living)))).close()
        if living:
            step(talker, living)
    for stream in living:
        stream.close()
    counters = talker.counters()
    assert (counters["live"], counters["free_pages"]) == (0, 59)


def test_what_both_rows_go_on_from_is_computed_once_and_lies_in_the_same_pages(model: CsmTalker) -> None:
    talker = engine(model, context=CONTEXT)
    stream = speak(talker, TEXT, seed=1, guided=True, max_frames=MAX_FRAMES)
    stream.finish()
    shared = 0
    while not any(emission.final for _, emission in step(talker, [stream])):
        if stream.gang is not None and stream.gang.holds_pages:
            one, other = (row.pages for row in stream.gang.rows)
            whole = (min(map(len, stream.gang.prompts)) - 1) // PAGE_SIZE
            assert one[:whole] == other[:whole]
            assert not set(one[whole:]) & set(other[whole:])
            shared = max(shared, whole)
    assert shared > 1


WIDTH = 1 + SMALL.codebooks


def positions(count: int, width: int = WIDTH) -> torch.Tensor:
    return torch.arange(count * width).view(count, width)


def test_what_is_too_long_is_not_gone_on_from_and_nothing_of_it_is_cut() -> None:
    context = Context(positions=8, row_positions=40, end=positions(1).unbind())
    said = context.of(positions(4), positions(3).unbind())
    assert said is not None
    assert torch.equal(said, torch.cat((positions(4), positions(3), positions(1))))
    assert context.of(positions(4), positions(4).unbind()) is None
    assert context.of(positions(4), []) is None, "words without sound are no context"


def test_a_passage_for_which_a_row_has_no_room_behind_another_stands_alone() -> None:
    context = Context(positions=8, row_positions=40)
    for max_frames, behind in ((29, 8), (30, 0)):
        passage = Passage([positions(3), positions(2)], max_frames, 0, None, ends_segment=True)
        assert [len(prompt) for prompt in context.before(passage, positions(8))] == [behind + 3, behind + 2]
        assert context.before(passage, None) is passage.prompts


def test_a_passage_that_would_be_longer_than_what_the_model_was_trained_on_stands_alone() -> None:
    context = Context(positions=8, row_positions=40, trained_positions=16)
    for usual_frames, behind in ((5, 8), (6, 0)):
        passage = Passage([positions(3), positions(2)], 20, 0, None, ends_segment=True, usual_frames=usual_frames)
        assert [len(prompt) for prompt in context.before(passage, positions(8))] == [behind + 3, behind + 2]


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_context_of_no_positions_is_refused_with_the_limit(wrong: int) -> None:
    with pytest.raises(StreamSynthError, match="at least 1") as refused:
        Context(positions=wrong, row_positions=ROW_POSITIONS)
    assert refused.value.param == "context_positions"
