"""What waits to be sent on a video socket: answers, and pairs of metadata and payload that nothing parts. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from streamsynth.realtime.frame_queue import Frame, text_frame
from streamsynth.realtime.messages import ServerMessage
from streamsynth.realtime.video_messages import ChunkMetadata


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    metadata: ChunkMetadata
    payload: bytes


class VideoQueue:
    """Answers overtake the media that waits, never a payload whose metadata has left. `last` comes after everything."""

    def __init__(self) -> None:
        self._answers: deque[Frame] = deque()
        self._pairs: deque[_Pair] = deque()
        self._due: _Pair | None = None
        self._last: ServerMessage | None = None
        self.answer_bytes = 0
        """Text that nobody asks for room: a client that sends and never reads makes it grow."""
        self.pairs = 0
        """Pairs whose payload was not taken yet."""

    def put_answer(self, message: ServerMessage) -> None:
        frame = text_frame(message)
        self._answers.append(frame)
        self.answer_bytes += len(frame.payload)

    def put_pair(self, metadata: ChunkMetadata, payload: bytes) -> None:
        self._pairs.append(_Pair(metadata, payload))
        self.pairs += 1

    def put_last(self, message: ServerMessage) -> None:
        self._last = message

    def take(self) -> tuple[Frame, ChunkMetadata | None] | None:
        """The next frame; with a payload comes the metadata that it belongs to."""
        if self._due is not None:
            pair, self._due = self._due, None
            self.pairs -= 1
            return Frame(pair.payload), pair.metadata
        if self._answers:
            frame = self._answers.popleft()
            self.answer_bytes -= len(frame.payload)
            return frame, None
        if self._pairs:
            self._due = self._pairs.popleft()
            return text_frame(self._due.metadata), None
        if self._last is not None:
            last, self._last = self._last, None
            return text_frame(last), None
        return None

    def clear(self) -> None:
        """Drop everything, also a payload whose metadata has left."""
        self._answers.clear()
        self._pairs.clear()
        self._due = self._last = None
        self.answer_bytes = self.pairs = 0
