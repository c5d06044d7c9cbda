"""What a second of speech costs."""

import pytest

from streamsynth.engine.cost import MediaCost


def test_nothing_made_is_not_known_and_costs_nothing() -> None:
    cost = MediaCost()
    cost.add(1.0, 0.0)
    assert (cost.known, cost.look()) == (False, 0.0)


def test_it_is_work_over_media_not_a_mean_of_steps() -> None:
    cost = MediaCost()
    cost.add(0.06, 0.4)
    cost.add(0.14, 4.6)
    assert cost.look() == pytest.approx(0.04)


def test_recent_steps_count_more_and_looking_alone_changes_nothing() -> None:
    cost = MediaCost()
    cost.add(1.0, 10.0)
    for _ in range(100):
        assert cost.look() == pytest.approx(0.1)
    for _ in range(30):
        cost.add(3.0, 10.0)
        last = cost.look()
    assert last == pytest.approx(0.3, rel=0.01)
