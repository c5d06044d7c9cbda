"""The viewer simulator: underrun, audible onset and C50/C100/C200 as numbers.md defines them (S16, S17)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.testing.viewer import Continuity, Viewer, continuity

RATE = 24_000
MS = 1_000_000


def tone(milliseconds: int) -> npt.NDArray[np.float32]:
    return np.full(RATE * milliseconds // 1000, 0.5, np.float32)


def silence(milliseconds: int) -> npt.NDArray[np.float32]:
    return np.zeros(RATE * milliseconds // 1000, np.float32)


def test_chunks_that_come_before_they_are_due_are_not_late() -> None:
    viewer = Viewer(RATE)
    viewer.receive(7 * MS, tone(100))
    viewer.receive(107 * MS, tone(100))
    viewer.receive(110 * MS, tone(100))
    assert viewer.worst_lateness_ns == 0
    assert viewer.started_ns == 7 * MS


def test_underrun_is_the_worst_lateness_of_any_later_chunk() -> None:
    """S16: an 80 ms first chunk and then nothing for hundreds of milliseconds starves a player that starts at once."""
    viewer = Viewer(RATE)
    viewer.receive(0, tone(80))
    assert viewer.receive(380 * MS, tone(400)) == 300 * MS
    assert viewer.receive(500 * MS, tone(400)) == 20 * MS
    assert viewer.worst_lateness_ns == 300 * MS


def test_the_clock_does_not_wait_so_one_constant_delay_is_one_underrun() -> None:
    viewer = Viewer(RATE)
    viewer.receive(0, tone(100))
    late = [viewer.receive((100 * k + 30) * MS, tone(100)) for k in range(1, 10)]
    assert late == [30 * MS] * 9
    assert viewer.worst_lateness_ns == 30 * MS


def test_the_first_chunk_is_never_late_and_its_length_is_kept() -> None:
    viewer = Viewer(RATE)
    assert viewer.receive(10**12, tone(40)) == 0
    viewer.receive(10**12, tone(100))
    assert viewer.first_samples == RATE * 40 // 1000


def test_an_empty_chunk_neither_starts_the_clock_nor_is_late() -> None:
    viewer = Viewer(RATE)
    viewer.receive(5 * MS, silence(0))
    assert viewer.started_ns is None
    viewer.receive(9 * MS, tone(10))
    assert viewer.receive(10**12, silence(0)) == 0
    assert (viewer.started_ns, viewer.worst_lateness_ns, viewer.chunks) == (9 * MS, 0, 1)


def test_audible_onset_is_when_the_clock_reaches_the_first_sound_not_when_it_came() -> None:
    viewer = Viewer(RATE)
    viewer.receive(20 * MS, silence(50))
    assert viewer.audible_ns is None
    viewer.receive(21 * MS, np.concatenate([silence(30), tone(30)]))
    assert viewer.audible_ns == 100 * MS


@given(
    st.lists(st.integers(1, 10_000), min_size=1, max_size=40),
    st.integers(0, 10**9),
    st.sampled_from([8_000, 22_050, 44_100]),
)
def test_exactly_on_time_is_never_late_however_the_audio_is_cut(cuts: list[int], start: int, rate: int) -> None:
    viewer = Viewer(rate)
    position = 0
    for count in cuts:
        assert viewer.receive(start + position * 1_000_000_000 // rate, np.zeros(count, np.float32)) == 0
        position += count
    assert viewer.samples == position


def test_continuity_counts_requests_within_each_limit() -> None:
    """S17: time to first audio and RTF can be fine while the listener hears gaps; these shares show it."""
    underruns = [0, 50 * MS, 50 * MS + 1, 100 * MS, 150 * MS, 200 * MS, 201 * MS, 10**10]
    assert continuity(underruns) == Continuity(c50=2 / 8, c100=4 / 8, c200=6 / 8)


def test_a_failed_request_is_never_continuous() -> None:
    assert continuity([0], failed=1) == Continuity(0.5, 0.5, 0.5)


def test_there_is_no_continuity_of_nothing() -> None:
    with pytest.raises(ValueError, match="no requests"):
        continuity([])


def test_a_sample_rate_must_be_positive() -> None:
    with pytest.raises(ValueError, match="sample_rate is 0"):
        Viewer(0)
