"""Where a viewer is, and which pictures wait: the bounds of a video's way out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.interactions.messages import ChunkReport
from streamsynth.realtime.media_clock import MediaClock
from streamsynth.realtime.picture_queue import Dropped, PictureQueue
from streamsynth.video import VideoChunk


@given(
    st.integers(1, 2),
    st.lists(st.tuples(st.floats(0, 2), st.one_of(st.none(), st.floats(0, 50))), min_size=1, max_size=40),
)
def test_no_chunk_leaves_more_than_the_lead_early_nor_later_than_it_must(
    lead: int, steps: list[tuple[float, float | None]]
) -> None:
    """A chunk lasts a second. `steps`: how long the model took, and what the viewer reports before that."""
    clock, now_s = MediaClock(float(lead)), 0.0
    for start, (making_s, report_s) in enumerate(steps):
        if report_s is not None:
            clock.reported(report_s, now_s)
        wait_s = clock.wait_s(float(start), now_s)
        now_s += max(wait_s, 0.0)
        assert clock.wait_s(float(start), now_s) == pytest.approx(0.0, abs=1e-6)
        assert clock.lead_s(now_s) <= lead + 1e-6
        if start and wait_s:
            assert clock.lead_s(now_s) == pytest.approx(lead)  # No reason to hold it longer: the viewer has the lead.
        now_s += making_s
        clock.sent(start + 1.0, now_s)
        assert 0.0 <= clock.position_s(now_s) <= start + 1.0


def test_a_viewer_without_pictures_stands_still() -> None:
    clock = MediaClock(1.0)
    clock.sent(1.0, 10.0)
    assert clock.position_s(15.0) == 1.0
    clock.sent(2.0, 15.0)
    assert clock.position_s(15.5) == 1.5


def test_a_live_video_waits_for_no_viewer() -> None:
    clock = MediaClock(1.0, live=True)
    clock.sent(1.0, 10.0)
    clock.reported(0.0, 12.0)
    assert clock.wait_s(4.0, 12.0) == 1.0


def chunk(number: int, frames: int, *events: str) -> VideoChunk:
    report = ChunkReport(number, started=events, active=events, completed=events)
    return VideoChunk(np.zeros((frames, 2, 2, 3), np.uint8), 16, 10 * number, report)


@given(st.lists(st.one_of(st.none(), st.integers(1, 30)), max_size=60))
def test_what_is_held_is_bounded_and_every_picture_and_event_is_sent_or_counted(steps: list[int | None]) -> None:
    queue = PictureQueue(24)
    put = taken = dropped = 0
    events: list[str] = []
    seen: list[str] = []
    for number, step in enumerate(steps):
        if step is not None:
            events.append(f"e{number}")
            gone = queue.put(chunk(number, step, f"e{number}"))
            put += step
            dropped += gone.frames if gone else 0
            assert len(queue) <= max(24, step)
        elif not queue.empty:
            out = queue.take()
            taken += len(out.pictures)
            seen += out.report.started
    while not queue.empty:
        out = queue.take()
        taken += len(out.pictures)
        seen += out.report.started
    assert taken + dropped == put
    assert seen == events


def test_the_oldest_gives_way() -> None:
    queue = PictureQueue(24)
    assert queue.put(chunk(0, 12)) is None
    assert queue.put(chunk(1, 12)) is None
    assert queue.put(chunk(2, 12)) == Dropped(12, 0)
    assert queue.take().report.chunk == 1
