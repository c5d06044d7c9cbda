"""A speech session driven by hand: messages and synthesis events in, time as told, frames and effects out."""

from __future__ import annotations

from functools import partial
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime import speech_messages as wire
from streamsynth.realtime.frame_queue import Frame
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.session_config import parse_session_config
from streamsynth.realtime.speech_events import Audio, ContainerEnd, ContainerStart, Effect, End
from streamsynth.realtime.speech_session import SpeechSession
from streamsynth.testing.sine_pipeline import SINE

RATE = 24_000


class Meter:
    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.sent_samples: list[tuple[int, float]] = []
        self.statuses: list[str] = []

    def sent(self, samples: int, now_s: float) -> None:
        self.sent_samples.append((samples, now_s))

    def ended(self, status: str) -> None:
        self.statuses.append(status)


class Observed:
    def __init__(self) -> None:
        self.meters: list[Meter] = []
        self.refusals: list[ErrorCode] = []
        self.acknowledged_s: list[float] = []

    def utterance_started(self, model: str, sample_rate: int, now_s: float) -> Meter:
        self.meters.append(Meter(now_s))
        return self.meters[-1]

    def refused(self, code: ErrorCode) -> None:
        self.refusals.append(code)

    def cancel_acknowledged(self, seconds: float) -> None:
        self.acknowledged_s.append(seconds)


class Driver:
    """`say` and the synthesis methods feed the session; `sent` takes what a transport with room would take."""

    def __init__(self, *, config: dict[str, Any] | None = None, **limits: Any) -> None:
        self.now = 100.0
        self.observed = Observed()
        parse = partial(parse_session_config, models={"sine": SINE})
        self.session = SpeechSession(parse, Limits(**limits), {"sine": {"lead_s": 10.0}}, self.observed, self.now)
        self.all_effects: list[Effect] = []
        if config is not None:
            self.configure(**config)

    # the client

    def say(self, message: wire.ClientMessage) -> None:
        self.session.receive(message, self.now)

    def configure(self, **fields: Any) -> None:
        self.say(wire.SessionConfig(fields))

    def text(self, text: str) -> None:
        self.say(wire.InputText(text))

    def done(self) -> None:
        self.say(wire.InputDone())

    def speak(self, text: str) -> None:
        self.text(text)
        self.done()

    def cancel(self, index: int | None = None) -> None:
        self.say(wire.InputCancel(index))

    # the engine

    def start(self, index: int, text: str = "words") -> None:
        self.session.synthesis_opened(index, f"utt-{index}")
        self.session.synthesis_made(index, ContainerStart(text, "pcm", RATE, 1))

    def audio(self, index: int, samples: int = 480) -> None:
        self.session.synthesis_made(index, Audio(bytes(2 * samples), samples))

    def end(self, index: int) -> None:
        self.session.synthesis_made(index, ContainerEnd())

    def complete(self, index: int, reason: str = "stop") -> None:
        self.session.synthesis_completed(index, reason, self.now)

    def make(self, index: int, frames: int = 1) -> None:
        """A whole utterance of one container."""
        self.start(index)
        for _ in range(frames):
            self.audio(index)
        self.end(index)
        self.complete(index)

    def fail(self, index: int, code: ErrorCode = ErrorCode.ENGINE_FAILED) -> None:
        self.session.synthesis_failed(index, StreamSynthError(code, "it broke"), self.now)

    # the transport

    def take(self) -> Frame | None:
        return self.session.take(self.now)

    def sent(self, frames: int | None = None) -> list[Any]:
        """Take so many frames, or all, as messages; a binary frame is its number of samples."""
        taken: list[Any] = []
        while len(taken) != frames and (frame := self.take()) is not None:
            taken.append(frame.message or frame.samples)
        return taken

    def types(self, frames: int | None = None) -> list[str]:
        return [kind(message) for message in self.sent(frames)]

    # time and effects

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.session.tick(self.now)

    def effects(self) -> list[Effect]:
        new = self.session.effects()
        self.all_effects += new
        return new

    def end_effect(self) -> End | None:
        self.effects()
        ends = [effect for effect in self.all_effects if isinstance(effect, End)]
        assert len(ends) <= 1, "a session ends once"
        return ends[0] if ends else None


def kind(message: Any) -> str:
    """A message's type on the wire; binary frames are "audio"."""
    return "audio" if isinstance(message, int) else str(type(message).__struct_config__.tag)


PCM: dict[str, Any] = {"response_format": "pcm", "stream_audio": True}
SENTENCES: dict[str, Any] = {**PCM, "split_granularity": "sentence"}
