"""Which finished videos go when there are too many, too large or too old ones. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from streamsynth.realtime.limits import Limits
from streamsynth.realtime.video_job import JobRecord


def is_expired(record: JobRecord, limits: Limits, now_s: float) -> bool:
    return record.completed_at is not None and record.completed_at + limits.stored_video_s <= now_s


def surplus(records: Sequence[JobRecord], limits: Limits, now_s: float, *, growing_bytes: int = 0) -> list[JobRecord]:
    """Those to remove: the expired ones, then, while there are too many or too many bytes, the oldest finished one of
    the owner who holds most. `growing_bytes` are those of unfinished files.
    """
    gone = [record for record in records if is_expired(record, limits, now_s)]
    kept = [record for record in records if record not in gone]
    while len(kept) > limits.stored_videos and (victim := _oldest(kept, lambda _: 1)):
        kept.remove(victim)
        gone.append(victim)
    while _nbytes(kept) + growing_bytes > limits.stored_video_bytes and (
        victim := _oldest([record for record in kept if record.nbytes], lambda record: record.nbytes)
    ):
        kept.remove(victim)
        gone.append(victim)
    return gone


def _nbytes(records: Sequence[JobRecord]) -> int:
    return sum(record.nbytes for record in records)


def _oldest(records: Sequence[JobRecord], weight: Callable[[JobRecord], int]) -> JobRecord | None:
    finished = [record for record in records if record.finished]
    held: Counter[str] = Counter()
    for record in finished:
        held[record.owner] += weight(record)
    if not held:
        return None
    owner = max(held, key=lambda name: held[name])
    return min(
        (record for record in finished if record.owner == owner),
        key=lambda record: (record.completed_at or 0, record.created_at),
    )
