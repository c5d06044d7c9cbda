"""Continuous batching: who steps, who waits, who is preempted, and that no page is ever lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.engine.kv.pages import ROOT_KEY, PagePool, PrefixKey, prefix_key
from streamsynth.engine.planner import Gang, Planner, Row
from streamsynth.errors import StreamSynthError

PAGE = 4


def planner(pages: int = 17, rows: int = 8, tokens: int = 64) -> Planner:
    return Planner(PagePool(pages), page_size=PAGE, max_rows=rows, max_tokens=tokens)


def gang(*lengths: int, keys: list[PrefixKey] | None = None) -> Gang:
    return Gang([Row(length, keys or ()) for length in lengths])


def keys(count: int) -> list[PrefixKey]:
    chain = [ROOT_KEY]
    for number in range(count):
        chain.append(prefix_key(chain[-1], bytes([number])))
    return chain[1:]


def test_a_prompt_is_computed_whole_and_the_gang_is_ready() -> None:
    plans = planner()
    one = gang(6)
    plan = plans.plan([one])
    assert [(span.start, span.count) for span in plan.spans] == [(0, 6)]
    assert plan.ready == [one]
    assert len(one.rows[0].pages) == 2


def test_pages_grow_per_step() -> None:
    plans = planner()
    one = gang(4)
    plans.plan([one])
    one.extend()
    plan = plans.plan([one])
    assert [(span.start, span.count) for span in plan.spans] == [(4, 1)]
    assert len(one.rows[0].pages) == 2


def test_a_long_prompt_is_computed_in_chunks_and_draws_only_when_complete() -> None:
    plans = planner(tokens=5)
    one = gang(12)
    assert plans.plan([one]).ready == []
    assert plans.plan([one]).ready == []
    assert plans.plan([one]).ready == [one]


def test_a_gang_advances_as_one_and_its_rows_stay_adjacent() -> None:
    """CFG-7, CFG-8: rows of different prompts complete on the same step; nobody comes between them."""
    plans = planner(tokens=6)
    pair, lone = gang(5, 3), gang(2)
    first = plans.plan([pair, lone])
    assert [span.row for span in first.spans] == [pair.rows[0], pair.rows[1]]
    assert first.ready == []
    second = plans.plan([pair, lone])
    assert [span.row for span in second.spans] == [*pair.rows, lone.rows[0]]
    assert second.ready == [pair, lone]


def test_a_gang_is_admitted_all_or_nothing() -> None:
    """CFG-12: a pair that does not fit takes nothing."""
    plans = planner(pages=4)
    pair = gang(8, 8)
    assert plans.plan([pair]).spans == []
    plans.check()
    assert not pair.holds_pages


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    plans = planner(pages=5)
    plans.check_fits([16])
    with pytest.raises(StreamSynthError, match="needs 5 pages of 4 positions; the model has 4"):
        plans.check_fits([17])
    with pytest.raises(StreamSynthError, match="needs 2 rows; a step has 1"):
        planner(rows=1).check_fits([1, 1])


def test_a_newcomer_waits_for_free_pages_and_keeps_its_place() -> None:
    plans = planner(pages=4)
    inside, outside = gang(8), gang(8)
    assert plans.plan([inside, outside]).ready == [inside]
    assert plans.plan([outside]).spans == []
    plans.release(inside)
    assert plans.plan([outside]).ready == [outside]


def test_a_growing_gang_preempts_the_one_that_needs_least() -> None:
    plans = planner(pages=6)
    needy, middle, rich = gang(4), gang(4), gang(4)
    assert plans.plan([needy, middle, rich]).ready == [needy, middle, rich]
    for _ in range(9):
        needy.extend()
    plan = plans.plan([needy, middle, rich])
    assert needy in plan.ready
    assert plans.preemptions == 1
    assert middle.holds_pages
    assert not rich.holds_pages
    plans.check()


def test_idle_holders_are_preempted_before_those_that_want_to_step() -> None:
    plans = planner(pages=6)
    needy, idle, rich = gang(4), gang(4), gang(4)
    plans.plan([needy, idle, rich])
    for _ in range(9):
        needy.extend()
    plan = plans.plan([needy, rich])
    assert plans.preemptions == 1
    assert not idle.holds_pages
    assert list(plan.ready) == [needy, rich]


def test_a_preempted_gang_computes_everything_again() -> None:
    plans = planner()
    one = gang(6)
    plans.plan([one])
    one.extend()
    plans.release(one)
    plan = plans.plan([one])
    assert [(span.start, span.count) for span in plan.spans] == [(0, 7)]


def test_a_shared_prompt_is_computed_once() -> None:
    plans = planner()
    first, second = gang(10, keys=keys(2)), gang(11, keys=keys(2))
    plans.plan([first])
    plans.publish(first)
    plan = plans.plan([second])
    assert [(span.start, span.count) for span in plan.spans] == [(8, 3)]
    assert second.rows[0].pages[:2] == first.rows[0].pages[:2]
    plans.release(first)
    plans.release(second)
    plans.check()


def test_a_prompt_that_is_shared_to_its_end_still_computes_its_last_position() -> None:
    plans = planner()
    first, second = gang(8, keys=keys(2)), gang(8, keys=keys(2))
    plans.plan([first])
    plans.publish(first)
    assert [(span.start, span.count) for span in plans.plan([second]).spans] == [(4, 4)]


def test_rows_of_a_gang_that_begin_alike_compute_their_beginning_once() -> None:
    """The first does it, over several steps here; the other has its pages from the start, and begins behind them."""
    plans = planner(pages=9, tokens=6)
    pair = gang(15, 14, keys=keys(3))
    spans = [[(span.row is pair.rows[1], span.start, span.count) for span in plans.plan([pair]).spans]]
    assert pair.rows[1].pages == pair.rows[0].pages[:3]
    plans.check()
    while len(spans) < 3:
        spans.append([(span.row is pair.rows[1], span.start, span.count) for span in plans.plan([pair]).spans])
    assert spans == [[(False, 0, 6)], [(False, 6, 6)], [(False, 12, 3), (True, 12, 2)]]
    assert plans.free_pages == 8 - 3 - 2
    plans.release(pair)
    plans.check()
    assert plans.free_pages == 8


def test_a_row_never_begins_behind_the_position_that_the_first_row_draws_from() -> None:
    """It is computed after all others: nobody may attend to it in that step."""
    plans = planner()
    pair = gang(8, 11, keys=keys(2))
    plan = plans.plan([pair])
    assert [(span.start, span.count) for span in plan.spans] == [(0, 8), (4, 7)]
    assert plan.ready == [pair]


def test_a_gang_whose_common_beginning_alone_takes_too_many_pages_takes_nothing() -> None:
    plans = planner(pages=3)
    pair = gang(15, 14, keys=keys(3))
    assert plans.plan([pair]).spans == []
    assert not pair.holds_pages
    plans.check()


def test_no_step_has_more_rows_than_it_may() -> None:
    plans = planner(rows=3)
    pair, lone, late = gang(1, 1), gang(1), gang(1)
    assert plans.plan([pair, lone, late]).ready == [pair, lone]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=80), st.integers(4, 20))
def test_whatever_joins_grows_and_leaves_the_pool_is_whole(steps: list[tuple[int, int]], pages: int) -> None:
    """V14, V21: the integrity check after each step, all pages back at the end."""
    plans = planner(pages=pages, rows=6, tokens=16)
    living: list[Gang] = []
    for action, number in steps:
        if action == 0:
            fresh = gang(*([number % 9 + 1] * (1 + number % 2)), keys=keys(number % 3))
            try:
                plans.check_fits([row.length for row in fresh.rows])
            except StreamSynthError:
                continue
            living.append(fresh)
        elif action == 1 and living:
            plans.release(living.pop(number % len(living)))
        elif living:
            start = number % len(living)
            plan = plans.plan(living[start:] + living[:start] if action == 2 else living[start:])
            for one in plan.ready:
                plans.publish(one)
                one.extend()
        plans.check()
        for one in living:
            assert len({row.length - row.computed for row in one.rows}) <= 2
    for one in living:
        plans.release(one)
    plans.check()
    assert plans._pool.available == plans._pool.usable
