"""Pings and the silence that means a dead peer."""

from __future__ import annotations

from streamsynth.realtime.liveness import Due, Liveness


def liveness() -> Liveness:
    return Liveness(0.0, ping_interval_s=20, dead_peer_s=40)


def test_a_ping_is_due_every_interval() -> None:
    peer = liveness()
    assert peer.next_s == 20
    assert peer.check(19.9) is Due.NOTHING
    assert peer.check(20) is Due.PING
    peer.heard(20.1)
    assert peer.check(39.9) is Due.NOTHING
    assert peer.check(40) is Due.PING


def test_forty_seconds_without_bytes_are_a_dead_peer() -> None:
    peer = liveness()
    assert peer.check(20) is Due.PING
    assert peer.next_s == 40
    assert peer.check(39.9) is Due.NOTHING
    assert peer.check(40) is Due.DEAD


def test_any_bytes_prove_that_the_peer_lives() -> None:
    peer = liveness()
    for second in range(20, 4000, 20):
        assert peer.check(second) is Due.PING
        peer.heard(second + 5)


def test_late_reports_of_earlier_bytes_change_nothing() -> None:
    peer = liveness()
    peer.heard(15)
    peer.check(20)
    peer.heard(10)
    assert peer.check(54.9) is Due.PING
    assert peer.check(55) is Due.DEAD


def test_a_server_that_was_held_up_asks_before_it_judges() -> None:
    """S53: a loop that stood still for a minute sent no ping, so the silence proves nothing."""
    peer = liveness()
    assert peer.check(90) is Due.PING
    assert peer.check(109.9) is Due.NOTHING
    peer.heard(91)
    assert peer.check(110) is Due.PING
    assert peer.check(130.9) is Due.PING
    assert peer.check(131) is Due.DEAD
