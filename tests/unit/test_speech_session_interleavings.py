"""Arbitrary interleavings of client, engine and transport: what holds for every one of them."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from session_driver import PCM, SENTENCES, Driver, kind

from streamsynth.errors import ErrorCode
from streamsynth.realtime import speech_messages as wire
from streamsynth.realtime.speech_events import (
    Effect,
    End,
    FinishText,
    PushText,
    StartSynthesis,
    StopSynthesis,
)

TEXTS = st.sampled_from(["", " ", ".", "hello ", "One. Two. ", "🙂", "x" * 9])
CONFIGS = st.sampled_from(
    [PCM, SENTENCES, {"response_format": "wav"}, {**PCM, "close_on_done": True}, {"speed": "fast"}]
)
FAILURES = st.sampled_from([ErrorCode.WORKER_DIED, ErrorCode.OVERLOADED, ErrorCode.ENGINE_FAILED, ErrorCode.CANCELLED])


class Synthesis:
    """What an engine knows of the one utterance that it makes."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.text = ""
        self.finished = False
        self.in_container = False
        self.made = False


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.drive = Driver(text_characters=40, session_utterances=4, outbound_message_bytes=30_000)
        self.synthesis: Synthesis | None = None
        self.stopped: set[int] = set()
        self.flushes = 0
        self.consumed_by_cancel = 0
        self.sent: list[Any] = []
        self.acknowledged: set[int] = set()
        self.answered: list[int] = []
        self.audio_order: list[int] = []
        self.container: int | None = None
        self.counted: dict[int, int] = {}
        self.ended = False

    @initialize(fields=st.sampled_from([None, PCM, SENTENCES, SENTENCES]))
    def begin(self, fields: dict[str, Any] | None) -> None:
        if fields is not None:
            self.drive.configure(**fields)

    # what the client does

    @rule(fields=CONFIGS, ack=st.booleans())
    def configure(self, fields: dict[str, Any], ack: bool) -> None:
        self.drive.configure(**fields, ack=ack)
        self.settle()

    @rule(text=TEXTS)
    def append(self, text: str) -> None:
        self.drive.text(text)
        self.settle()

    @rule()
    def flush(self) -> None:
        configured = self.drive.session._settings is not None and not self.drive.session.ended
        self.drive.done()
        self.flushes += configured
        self.settle()

    @rule(texts=st.lists(st.sampled_from(["hello ", "One. Two. "]), min_size=1, max_size=3))
    def speak(self, texts: list[str]) -> None:
        for text in texts:
            self.append(text)
            self.flush()

    @rule(index=st.one_of(st.none(), st.integers(-1, 12)))
    def cancel(self, index: int | None) -> None:
        unflushed = self.drive.session._open
        self.drive.cancel(index)
        if unflushed is not None and self.drive.session._open is None and not self.drive.session.ended:
            self.consumed_by_cancel += 1
        self.settle()

    @rule()
    def ping_and_read(self) -> None:
        self.drive.say(wire.SessionPing())
        self.drain_transport(3)

    # what the engine does

    @precondition(lambda self: self.synthesis is not None)
    @rule(samples=st.integers(0, 2000), number=st.integers(1, 6), whole=st.booleans())
    def make(self, samples: int, number: int, whole: bool) -> None:
        synthesis = self.synthesis
        assert synthesis is not None
        if not synthesis.in_container:
            self.drive.start(synthesis.index)
            synthesis.in_container = synthesis.made = True
        for _ in range(number):
            self.drive.audio(synthesis.index, samples)
        self.settle()
        if whole:
            self.end_container()
            if synthesis.finished:
                self.complete()

    @precondition(lambda self: self.synthesis is not None and self.synthesis.in_container)
    @rule()
    def end_container(self) -> None:
        synthesis = self.synthesis
        assert synthesis is not None
        self.drive.end(synthesis.index)
        synthesis.in_container = False
        self.settle()

    @precondition(
        lambda self: self.synthesis is not None and self.synthesis.finished and not self.synthesis.in_container
    )
    @rule()
    def complete(self) -> None:
        synthesis, self.synthesis = self.synthesis, None
        assert synthesis is not None
        self.drive.complete(synthesis.index)
        self.settle()

    @precondition(lambda self: self.synthesis is not None)
    @rule(code=FAILURES)
    def fail(self, code: ErrorCode) -> None:
        synthesis, self.synthesis = self.synthesis, None
        assert synthesis is not None
        self.drive.fail(synthesis.index, code)
        self.settle()

    @precondition(lambda self: self.stopped)
    @rule(data=st.data())
    def straggle(self, data: st.DataObject) -> None:
        """Events of a synthesis that was stopped before may still come."""
        index = data.draw(st.sampled_from(sorted(self.stopped)))
        self.drive.make(index)
        self.drive.fail(index)
        self.settle()

    # what the transport, the clock and the server do

    @rule(frames=st.integers(1, 12))
    def drain_transport(self, frames: int) -> None:
        for _ in range(frames):
            for message in self.drive.sent(1):
                self.check_sent(message)
            self.settle()

    @rule(seconds=st.sampled_from([0.01, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.drive.wait(seconds)
        self.settle()

    @precondition(lambda self: len(self.sent) > 30)
    @rule(how=st.sampled_from(["drain", "lost", "close", "stalled"]))
    def end(self, how: str) -> None:
        match how:
            case "drain":
                self.drive.session.drain("bye", self.drive.now)
            case "lost":
                self.drive.session.lost()
            case "close":
                self.drive.say(wire.SessionClose())
            case "stalled":
                self.drive.session.stalled()
        self.settle()

    # what must come of it

    def settle(self) -> None:
        for effect in self.drive.effects():
            self.check_effect(effect)
        self.ended = self.drive.session.ended

    def check_effect(self, effect: Effect) -> None:
        synthesis = self.synthesis
        assert not self.ended, "nothing follows the end"
        match effect:
            case StartSynthesis(index, _):
                assert synthesis is None, "one synthesis of a session at a time"
                self.synthesis = Synthesis(index)
            case PushText(index, text):
                assert synthesis is not None
                assert synthesis.index == index
                assert not synthesis.finished
                assert text
                synthesis.text += text
            case FinishText(index):
                assert synthesis is not None
                assert synthesis.index == index
                assert not synthesis.finished
                synthesis.finished = True
            case StopSynthesis(index):
                assert synthesis is not None
                assert synthesis.index == index
                self.synthesis = None
                self.stopped.add(index)
            case End():
                self.ended = True

    def check_sent(self, message: Any) -> None:
        assert not self.ended
        self.sent.append(message)
        if isinstance(message, int):
            assert self.container is not None, "audio is inside a container"
            assert self.container not in self.acknowledged
            self.audio_order.append(self.container)
            self.counted[self.container] = self.counted.get(self.container, 0) + message
            return
        index = getattr(message, "utterance_index", None)
        match kind(message):
            case "audio.start":
                assert self.container is None or self.container in self.acknowledged
                assert index not in self.acknowledged
                assert index not in self.answered
                self.container = index
            case "audio.done":
                assert self.container == index
                assert index not in self.acknowledged
                self.container = None
            case "input.cancelled":
                assert index not in self.acknowledged
                assert index not in self.answered
                assert message.samples_sent == self.counted.get(index, 0)
                self.acknowledged.add(index)
                if self.container == index:
                    self.container = None
            case "session.done":
                assert index not in self.answered, "one session.done each"
                assert (message.status == "cancelled") == (index in self.acknowledged)
                assert message.total_samples == self.counted.get(index, 0)
                self.answered.append(index)

    @invariant()
    def audio_is_in_order(self) -> None:
        assert self.audio_order == sorted(self.audio_order)

    @invariant()
    def the_ends_of_utterances_that_were_spoken_are_in_order(self) -> None:
        spoken = [index for index in self.answered if index in self.counted and index not in self.acknowledged]
        assert spoken == sorted(spoken)

    @invariant()
    def no_more_answers_than_flushes(self) -> None:
        assert len(self.answered) <= self.flushes + self.consumed_by_cancel

    @invariant()
    def the_tick_is_announced(self) -> None:
        due = self.drive.session.next_tick_s
        assert (due is None) == self.drive.session.ended

    def teardown(self) -> None:
        """Let everything finish: every flush is then answered exactly once, with strictly counted indexes."""
        for _ in range(2000):  # more frames than all steps can queue
            if self.drive.session.ended:
                break
            if self.synthesis is not None:
                if self.synthesis.in_container:
                    self.end_container()
                elif self.synthesis.finished:
                    self.complete()
                else:
                    self.flush()
            self.drain_transport(1)
        if not self.drive.session.ended:
            unflushed = 1 if self.drive.session._open is not None else 0
            assert sorted(self.answered) == list(range(self.flushes + self.consumed_by_cancel))
            assert self.drive.session.unfinished == unflushed
        else:
            assert self.drive.session.unfinished == 0
            assert self.synthesis is None


Interleavings.TestCase.settings = settings(
    max_examples=120, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
)
TestInterleavings = Interleavings.TestCase
