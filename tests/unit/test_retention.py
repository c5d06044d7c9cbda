"""What is kept of finished videos: within age, count and bytes, the oldest go first, and of whoever holds most."""

from __future__ import annotations

from streamsynth.realtime.limits import Limits
from streamsynth.realtime.retention import is_expired, surplus
from streamsynth.realtime.video_job import JobRecord, JobStatus

LIMITS = Limits(stored_videos=3, stored_video_bytes=100, stored_video_s=50)


def record(name: str, at: int | None = None, nbytes: int = 10, owner: str = "a") -> JobRecord:
    return JobRecord(
        id=name,
        owner=owner,
        status=JobStatus.IN_PROGRESS if at is None else JobStatus.COMPLETED,
        created_at=at or 0,
        completed_at=at,
        model="paint",
        prompt="red",
        width=1,
        height=1,
        fps=1,
        num_frames=1,
        seed=1,
        nbytes=nbytes if at is not None else 0,
    )


def gone(*records: JobRecord, now_s: float = 30, growing_bytes: int = 0) -> list[str]:
    return [each.id for each in surplus(records, LIMITS, now_s, growing_bytes=growing_bytes)]


def test_nothing_goes_within_the_limits() -> None:
    assert gone(record("1", 10), record("2", 20), record("3", 30, nbytes=80)) == []


def test_what_is_too_old_goes_at_its_time() -> None:
    assert gone(record("1", 10), record("2", 20), now_s=60) == ["1"]
    assert is_expired(record("1", 10), LIMITS, 60) and not is_expired(record("1", 10), LIMITS, 59.9)
    assert not is_expired(record("1"), LIMITS, 1e9), "what is being made does not age"


def test_of_too_many_the_oldest_go_and_never_one_that_is_being_made() -> None:
    assert gone(record("0"), record("2", 20), record("1", 10), record("3", 30), record("4", 40)) == ["1", "2"]
    assert gone(*(record(str(n)) for n in range(9))) == []


def test_of_too_many_bytes_the_oldest_files_go_also_for_one_that_grows() -> None:
    assert gone(record("1", 10, nbytes=60), record("2", 20, nbytes=0), record("3", 30, nbytes=50)) == ["1"]
    assert gone(record("0"), record("1", 10, nbytes=60), growing_bytes=41) == ["1"]
    assert gone(record("0"), growing_bytes=1000) == []


def test_who_fills_the_store_loses_their_own() -> None:
    others = record("old", 1, owner="b")
    assert gone(others, record("1", 10), record("2", 20), record("3", 30)) == ["1"]
    assert gone(others, record("1", 10, nbytes=60), record("2", 20, nbytes=40)) == ["1"]
