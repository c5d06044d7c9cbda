"""Chunks between a model that does not wait and an encoder that does: bounded, the oldest gives way. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import msgspec

from streamsynth.video import VideoChunk


@dataclass(frozen=True, slots=True)
class Dropped:
    """So many pictures, from this one on, will not be sent."""

    frames: int
    first_frame: int


class PictureQueue:
    """Holds at most `capacity` pictures, and always the newest chunk. What a dropped chunk would have said of
    interactions, the next one says."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._chunks: deque[VideoChunk] = deque()
        self._frames = 0

    def __len__(self) -> int:
        return self._frames

    @property
    def empty(self) -> bool:
        return not self._chunks

    def put(self, chunk: VideoChunk) -> Dropped | None:
        self._chunks.append(chunk)
        self._frames += len(chunk.pictures)
        dropped, first = 0, self._chunks[0].first_frame
        while self._frames > self._capacity and len(self._chunks) > 1:
            oldest = self._chunks.popleft()
            dropped += len(oldest.pictures)
            self._frames -= len(oldest.pictures)
            self._chunks[0] = _with_the_events_of(oldest, self._chunks[0])
        return Dropped(dropped, first) if dropped else None

    def take(self) -> VideoChunk:
        chunk = self._chunks.popleft()
        self._frames -= len(chunk.pictures)
        return chunk


def _with_the_events_of(dropped: VideoChunk, chunk: VideoChunk) -> VideoChunk:
    old, new = dropped.report, chunk.report

    def joined(first: tuple[str, ...], then: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*first, *then)))

    report = msgspec.structs.replace(
        new,
        started=joined(old.started, new.started),
        active=joined(old.active, new.active),
        completed=joined(old.completed, new.completed),
    )
    return replace(chunk, report=report)
