"""The fast loop draws the frames of the plain one, a step late, whatever joins, leaves, waits or is thrown out."""

import pytest
import torch
from talker_batch import GREEDY, PAGE_SIZE, SMALL, Batch, captured

from streamsynth.engine.attention import PageMemory, QuantisedPageMemory
from streamsynth.engine.runner import Drawing, Runner
from streamsynth.engine.sampler import SamplingParams
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.csm.random_weights import random_talker

SAMPLED = Drawing(
    first=SamplingParams(temperature=0.9, top_k=20, seed=5), rest=SamplingParams(temperature=0.8, top_p=0.9, seed=6)
)
TEXTS = [[1, 2, 3], [7] * 23, [50, 40, 30, 20, 10], [5]]


@pytest.fixture(scope="module")
def talker() -> CsmTalker:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    return random_talker(SMALL, head_gain=40.0)


def plain_frames(talker: CsmTalker, *prompts: list[int], drawing: Drawing, count: int) -> torch.Tensor:
    batch = Batch(talker)
    return batch.draw(batch.join(*prompts, drawing=drawing), count)


@pytest.mark.parametrize("drawing", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("pages", [PageMemory, QuantisedPageMemory], ids=["plain", "float8"])
def test_a_mixed_batch_that_joins_and_leaves_draws_what_the_plain_loop_draws(
    talker: CsmTalker, drawing: Drawing, pages: type[PageMemory]
) -> None:
    plain, fast = Batch(talker, pages=pages), Batch(talker, captured(), pages=pages)
    results = []
    for batch in (plain, fast):
        gangs = []
        for ids in TEXTS:
            gangs.append(batch.join(ids, drawing=drawing))
            for _ in range(5):
                batch.step()
        early = batch.leave(gangs.pop(1))
        while any(len(frames) < 30 for frames in batch.frames.values()):
            batch.step()
        results.append([early[:3], *(batch.leave(gang)[:30] for gang in gangs)])
    for expected, drawn in zip(*results, strict=True):
        assert torch.equal(drawn, expected)


def test_guided_gangs_are_drawn_as_in_the_plain_loop(talker: CsmTalker) -> None:
    drawing = Drawing(first=SAMPLED.first, rest=SAMPLED.rest, scale=2.0)
    fast = Batch(talker, captured(rows=2))
    one = fast.join([8, 9, 10, 11], [1, 2], drawing=drawing)
    other = fast.join([3] * 20, [1, 2], drawing=drawing)
    expected = plain_frames(talker, [8, 9, 10, 11], [1, 2], drawing=drawing, count=20)
    assert torch.equal(fast.draw(one, 20), expected)
    expected = plain_frames(talker, [3] * 20, [1, 2], drawing=drawing, count=20)
    assert torch.equal(fast.draw(other, 20), expected)


@pytest.mark.parametrize("common", [15, 16, 17, 40])
def test_guided_rows_that_begin_alike_are_drawn_as_if_each_had_computed_its_beginning(
    talker: CsmTalker, common: int
) -> None:
    """Pages that one row still computes are the other's too, within a step and over several."""
    drawing = Drawing(first=SAMPLED.first, rest=SAMPLED.rest, scale=2.0)
    said = [5 + number % 40 for number in range(common)]
    one, other = [*said, 8], [*said, 1, 2, 3]
    apart = Batch(talker)
    rows = apart.join(one, other, drawing=drawing)
    for row in rows.rows:
        row.keys = ()
    expected = apart.draw(rows, 20)
    for make in (Runner, captured(rows=2)):
        batch = Batch(talker, make)
        gang = batch.join(one, other, drawing=drawing)
        batch.step()
        assert len(set(gang.rows[0].pages) & set(gang.rows[1].pages)) == common // PAGE_SIZE
        assert torch.equal(batch.draw(gang, 20), expected)


def test_a_gang_of_rows_that_were_not_captured_is_refused(talker: CsmTalker) -> None:
    """CFG-6: it never runs unguided."""
    fast = Batch(talker, captured(rows=2))
    fast.join([1, 2, 3])
    with pytest.raises(ValueError, match="gangs of 1 rows"):
        fast.step()


@pytest.mark.parametrize("number", [0, 1, 2, 7])
def test_a_gang_that_is_preempted_with_a_frame_under_way_goes_on(talker: CsmTalker, number: int) -> None:
    fast = Batch(talker, captured(), tokens=6)
    gang = fast.join([4, 5, 6], drawing=SAMPLED)
    steady = fast.join([9, 9], drawing=SAMPLED)
    for step in range(40):
        if step % 8 == number:
            fast.planner.release(gang)
        fast.step()
    assert torch.equal(fast.draw(gang, 20), plain_frames(talker, [4, 5, 6], drawing=SAMPLED, count=20))
    assert torch.equal(fast.draw(steady, 20), plain_frames(talker, [9, 9], drawing=SAMPLED, count=20))


def test_a_gang_that_pauses_goes_on_from_what_has_been_read(talker: CsmTalker) -> None:
    fast = Batch(talker, captured())
    gang, other = fast.join([4, 5, 6], drawing=SAMPLED), fast.join([2], drawing=SAMPLED)
    for step in range(30):
        frames = fast.frames.pop(gang)
        if step % 3:
            fast.frames = {gang: frames, **fast.frames}
            fast.step()
        else:
            for drawn in fast.runner.step(fast.planner.plan([other]), dict.fromkeys(other.rows, other)):
                (frames if drawn.gang is gang else fast.frames[other]).append(drawn.frame)
            fast.frames[gang] = frames
    assert torch.equal(fast.draw(gang, 15), plain_frames(talker, [4, 5, 6], drawing=SAMPLED, count=15))
    assert torch.equal(fast.draw(other, 15), plain_frames(talker, [2], drawing=SAMPLED, count=15))


def test_frames_are_read_one_step_late_and_no_later(talker: CsmTalker) -> None:
    fast = Batch(talker, captured())
    gang = fast.join([1, 2, 3])
    assert not fast.runner.busy
    for launched in range(1, 6):
        fast.step()
        assert fast.runner.busy
        assert gang.launched == launched
        assert len(fast.frames[gang]) == launched - 1
    fast.frames = {}
    fast.step()
    assert not fast.runner.busy
    assert gang.drawn == gang.launched == 5


def test_prompts_that_share_a_beginning_compute_it_once_and_draw_the_same(talker: CsmTalker) -> None:
    fast = Batch(talker, captured())
    ids = list(range(1, 20))
    first = fast.join(ids, drawing=SAMPLED)
    for _ in range(4):
        fast.step()
    second = fast.join([*ids, 30], drawing=SAMPLED)
    fast.step()
    assert second.rows[0].pages[:2] == first.rows[0].pages[:2]
    assert torch.equal(fast.draw(second, 10), plain_frames(talker, [*ids, 30], drawing=SAMPLED, count=10))


def test_gangs_that_ask_for_more_than_sampling_are_computed_plainly_beside_the_others(talker: CsmTalker) -> None:
    odd = torch.arange(40) % 2 == 1
    masked = Drawing(first=SAMPLED.first, rest=SAMPLED.rest, allowed={0: odd}, logprobs=2)
    fast, plain = Batch(talker, captured()), Batch(talker)
    asking, other = fast.join([4, 5, 6], drawing=masked), fast.join([2] * 20, drawing=SAMPLED)
    drawn = fast.draw(asking, 12)
    assert torch.equal(drawn, plain.draw(plain.join([4, 5, 6], drawing=masked), 12))
    assert odd[drawn[:, 0]].all()
    assert torch.equal(fast.draw(other, 12), plain_frames(talker, [2] * 20, drawing=SAMPLED, count=12))


def test_no_step_is_captured_after_the_first(talker: CsmTalker) -> None:
    fast = Batch(talker, captured())
    captures = fast.runner.captures
    assert captures == 5
    for ids in TEXTS:
        fast.join(ids)
        fast.step()
    assert fast.runner.captures == captures
