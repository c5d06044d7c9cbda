"""What a second of speech costs."""

import pytest

from streamsynth.engine.cost import UNKNOWN, Cost, MediaCost, Rehearsal


def test_nothing_made_is_not_known_and_costs_nothing() -> None:
    cost = MediaCost()
    assert not cost.add(1.0, 0.0)
    assert cost.look() == UNKNOWN
    assert cost.add(1.0, 4.0), "the first word, of which the work without media is a part"
    assert cost.look().each == pytest.approx(0.5)


def test_it_is_work_over_media_not_a_mean_of_steps() -> None:
    cost = MediaCost()
    cost.add(0.06, 0.4)
    cost.add(0.14, 4.6)
    seen = cost.look()
    assert seen.each == pytest.approx(0.04)
    assert seen.shared == pytest.approx(0.0)


def test_recent_steps_count_more_and_looking_alone_changes_nothing() -> None:
    cost = MediaCost()
    cost.add(1.0, 10.0)
    for _ in range(100):
        assert cost.look().each == pytest.approx(0.1)
    for _ in range(30):
        cost.add(3.0, 10.0)
        last = cost.look()
    assert last.each == pytest.approx(0.3, rel=0.01)


def test_only_the_first_step_that_makes_something_is_news() -> None:
    """One step over more than before says little: what it says is told with the next look."""
    cost = MediaCost()
    assert [cost.add(0.01, media_s, sharers) for media_s, sharers in ((0.0, 1), (0.04, 1), (0.04, 1), (0.08, 2))] == [
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("steps", [1, 50])
def test_what_is_shared_is_told_from_what_each_costs_however_often_each_number_was_seen(steps: int) -> None:
    """A step of 40 ms of media of each takes 10 ms and 2 ms for each."""
    cost = MediaCost()
    for sharers in range(1, 9):
        for _ in range(steps if sharers == 1 else 1):
            cost.add(0.010 + 0.002 * sharers, 0.04 * sharers, sharers)
            seen = cost.look()
    assert seen.shared == pytest.approx(0.25, rel=0.15)
    assert seen.each == pytest.approx(0.05, rel=0.15)
    assert seen.shared + 12 * seen.each == pytest.approx(0.85, rel=0.1)


@pytest.mark.parametrize("guess", [0.0, 0.5])
def test_one_number_of_sharers_says_nothing_of_what_is_shared(guess: float) -> None:
    cost = MediaCost(guess)
    cost.add(0.016, 0.16, 4)
    seen = cost.look()
    assert seen.shared == pytest.approx(0.4 * guess)
    assert seen.each == pytest.approx(0.1 * (1 - guess))


def test_where_more_cost_less_the_most_that_were_seen_say_what_each_costs() -> None:
    cost = MediaCost()
    cost.add(0.030, 0.04, 1)
    cost.add(0.020, 0.08, 2)
    assert cost.look() == Cost(0.0, pytest.approx(0.25))


TRIED = (Rehearsal(1, 0.0492, 0.16), Rehearsal(4, 0.0712, 0.64))
"""The steps of tiny-speech alone and four together."""


def test_a_rehearsal_of_one_and_of_several_tells_what_is_shared_before_any_request() -> None:
    seen = MediaCost(0.5, TRIED).look()
    assert seen.shared == pytest.approx(0.26, rel=0.1)
    assert seen.each == pytest.approx(0.046, rel=0.15)


def test_numbers_that_were_only_rehearsed_cost_as_much_more_or_less_as_those_that_are_seen() -> None:
    cost = MediaCost(0.5, TRIED)
    before = cost.look()
    assert not cost.add(2 * 0.0492, 0.16, 1), "it is no first word"
    now = cost.look()
    assert (now.shared, now.each) == (pytest.approx(2 * before.shared), pytest.approx(2 * before.each))


def test_a_machine_that_was_busy_for_a_while_does_not_keep_a_second_request_out_for_ever() -> None:
    cost = MediaCost(0.5, (Rehearsal(1, 0.15, 0.5), Rehearsal(2, 0.26, 1.0)))
    usual = cost.look()
    for _ in range(10):
        cost.add(0.8, 1.0, 2)
        busy = cost.look()
    assert busy.shared + 2 * busy.each > 1.4
    for _ in range(125):  # A minute of one request alone.
        cost.add(0.15, 0.5, 1)
        calm = cost.look()
    assert (calm.shared, calm.each) == (pytest.approx(usual.shared), pytest.approx(usual.each))


def test_work_counts_with_the_media_that_it_leads_to() -> None:
    """A chunk of video is many steps, of which one brings pictures; looks come at any of them."""
    cost = MediaCost()
    for _ in range(50):
        for media_s in (0.0, 0.0, 0.5, 0.0):
            cost.add(0.05, media_s, 1)
            last = cost.look()
    assert last.each == pytest.approx(0.4, rel=0.05)


def test_work_that_nobody_wants_any_more_is_forgotten() -> None:
    """V14: 200 videos that end before their first pictures keep nobody out afterwards."""
    cost = MediaCost()
    for _ in range(20):
        cost.add(0.2, 1.0, 2)
        cost.look()
    for _ in range(200):
        cost.add(0.1, 0.0, 2)
    for _ in range(60):  # Half a minute.
        cost.look()
    for _ in range(2):
        cost.add(0.2, 1.0, 2)
        cost.look()
    assert cost.look().each == pytest.approx(0.2, rel=0.05)
