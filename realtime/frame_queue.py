"""What waits to be sent on one socket: frames in order, each taken whole or, before that, purged whole. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from streamsynth.realtime.messages import ServerMessage, encode_message
from streamsynth.realtime.speech_messages import AudioStart


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One WebSocket message: text when `message` is set, else binary audio of `samples` samples lasting `media_us`.

    `utterance` is whose purge removes it (None: nobody's). `since_s` is when what it answers came.
    """

    payload: bytes | memoryview
    message: ServerMessage | None = None
    utterance: int | None = None
    samples: int = 0
    media_us: int = 0
    since_s: float = 0.0

    @property
    def is_text(self) -> bool:
        return self.message is not None


def text_frame(message: ServerMessage, *, utterance: int | None = None, since_s: float = 0.0) -> Frame:
    return Frame(encode_message(message), message, utterance, since_s=since_s)


def audio_frame(data: bytes | memoryview, *, utterance: int, samples: int, sample_rate: int) -> Frame:
    return Frame(data, None, utterance, samples, samples * 1_000_000 // sample_rate)


class FrameQueue:
    """First in, first out. `media_us` is the audio in it; `answer_bytes` are the text frames that nobody asks
    for room: a client that sends and never reads makes them grow.
    """

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self.media_us = 0
        self.answer_bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._count(frame, 1)

    def take(self) -> Frame | None:
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._count(frame, -1)
        return frame

    def purge(self, utterance: int) -> None:
        """Drop every frame of one utterance."""
        kept = deque(frame for frame in self._frames if frame.utterance != utterance)
        self.clear()
        for frame in kept:
            self.put(frame)

    def clear(self) -> None:
        self._frames.clear()
        self.media_us = self.answer_bytes = 0

    def _count(self, frame: Frame, sign: int) -> None:
        self.media_us += sign * frame.media_us
        if frame.message is not None and not isinstance(frame.message, AudioStart):
            self.answer_bytes += sign * len(frame.payload)
