"""The video socket's protocol, without a socket: what is answered, in which order, and that everything ends once."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.codecs.pictures import TICKS, Payload
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Applied, ChunkReport, Mode, Refused, Superseded
from streamsynth.interactions.slot import MAX_APPENDED
from streamsynth.realtime import video_messages as wire
from streamsynth.realtime.frame_queue import Frame
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.messages import Error, ServerMessage, SessionPing
from streamsynth.realtime.picture_queue import Dropped
from streamsynth.realtime.socket_session import End
from streamsynth.realtime.video_events import FinishVideo, StartVideo, Steer, StopVideo
from streamsynth.realtime.video_fields import parse_video_fields
from streamsynth.realtime.video_messages import parse_interaction
from streamsynth.realtime.video_session import VideoSession
from streamsynth.testing.paint_pipeline import PAINT

CHUNK = ChunkReport(0)
NO_PROMPT = StreamSynthError(ErrorCode.INVALID_VALUE, "no", param="prompt")


class Measured:
    """An observer and meter that keeps what it hears."""

    def __init__(self) -> None:
        self.refusals: list[ErrorCode] = []
        self.endings: list[str] = []
        self.frames = 0
        self.delivered_s: list[float] = []

    def video_started(self, model: str, fps: int, now_s: float) -> Measured:
        return self

    def refused(self, code: ErrorCode) -> None:
        self.refusals.append(code)

    def sent(self, frames: int, now_s: float) -> None:
        self.frames += frames

    def applied(self, seconds: float) -> None: ...

    def delivered(self, seconds: float) -> None:
        self.delivered_s.append(seconds)

    def dropped(self, frames: int) -> None: ...

    def ended(self, status: str) -> None:
        self.endings.append(status)


class Driver:
    """A session at a time of one's own."""

    def __init__(self, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.measured = Measured()
        parse = partial(parse_video_fields, models={"paint": PAINT}, payload_bytes=1 << 20, loopback=True)
        ids = (f"drawn-{number}" for number in itertools.count())
        self.session = VideoSession(parse, self.limits, self.measured, lambda: next(ids), 0.0)
        self.now_s = 0.0

    def start(self, **fields: Any) -> Driver:
        self.session.receive(wire.SessionStart({"prompt": "red", **fields}), self.now_s)
        return self

    def run(self, **fields: Any) -> Driver:
        """Start, and let the first chunk come; its messages are taken."""
        self.start(**fields)
        self.session.video_opened("video_stream-1", 5)
        self.session.video_begun("avc1.x", "video/mp4", b"head")
        self.chunk(0)
        self.frames()
        self.session.effects()
        return self

    def chunk(self, number: int, *payloads: Payload, **report: Any) -> None:
        given = payloads or (Payload(b"picture", 12, 12 * number),)
        self.session.chunk_made(ChunkReport(number, **report), given)

    def steer(self, event_id: str | None = None, **fields: Any) -> None:
        fields = {"event": {"prompt": "blue"}, **fields}
        if event_id is not None:
            fields["event_id"] = event_id
        self.session.receive(wire.SessionInteraction(fields), self.now_s)

    def frames(self) -> list[Frame]:
        return list(iter(lambda: self.session.take(self.now_s), None))

    def messages(self) -> list[ServerMessage]:
        return [frame.message for frame in self.frames() if frame.message is not None]

    def errors(self) -> list[tuple[str, str | None]]:
        return [(each.code, each.event_id) for each in self.messages() if isinstance(each, Error)]


def test_a_video_from_its_start_to_its_end() -> None:
    """RV-1, RV-12, RV-13: one id everywhere, one counter over all payloads, a trailer of no chunk, one end."""
    driver = Driver().start(num_frames=21)
    assert [type(effect) for effect in driver.session.effects()] == [StartVideo]
    driver.session.video_opened("video_stream-1", 5)
    driver.session.video_begun("avc1.x", "video/mp4", b"head")
    driver.chunk(0, Payload(b"12345", 9, 0))
    driver.chunk(1, Payload(b"123", 12, 9))
    driver.session.completed(chunks=2, frames=21, stopped=False, trailer=b"tail")
    frames = driver.frames()
    messages = [frame.message for frame in frames if frame.message is not None]
    metadata = [each for each in messages if isinstance(each, wire.ChunkMetadata)]
    assert isinstance(messages[0], wire.VideoStart) and messages[0].seed == "5"
    assert [each.kind for each in metadata] == ["init", "media", "media", "trailer"]
    assert [each.transport_chunk_index for each in metadata] == [0, 1, 2, 3]
    assert [each.generation_chunk_index for each in metadata] == [None, 0, 1, None]
    assert [each.pts for each in metadata] == [0, 0, 9 * TICKS, 21 * TICKS]
    assert messages[-1] == wire.SessionDone(request_id="video_stream-1", chunks=2, frames=21, stopped=False)
    assert {each.request_id for each in messages} == {"video_stream-1"}  # type: ignore[attr-defined]
    assert driver.session.effects() == [End(1000, "session.done")]
    assert driver.measured.endings[0] == "completed"


def test_hints_are_accepted_and_said_to_be_ignored() -> None:
    """Section 0: on every surface; of the wrong type they are refused."""
    driver = Driver().start(user="somebody", metadata={"tag": 1})
    driver.session.video_opened("video_stream-1", 5)
    driver.session.video_begun("avc1.x", "video/mp4", b"head")
    [started] = [each for each in driver.messages() if isinstance(each, wire.VideoStart)]
    assert started.ignored == ("metadata", "user")
    driver = Driver().start(metadata="no object")
    [error] = [each for each in driver.messages() if isinstance(each, Error)]
    assert (error.code, error.param) == ("invalid_value", "metadata")


def test_a_viewer_who_is_lost_before_the_end_was_sent_has_not_seen_a_whole_video() -> None:
    driver = Driver().run()
    driver.chunk(1)
    driver.session.completed(chunks=2, frames=24, stopped=False, trailer=b"")
    driver.session.lost()
    assert driver.measured.endings == ["cancelled"]


def test_nothing_parts_metadata_from_its_payload() -> None:
    """RV-11: answers overtake pairs that wait, between them only."""
    driver = Driver().run()
    driver.chunk(1)
    driver.chunk(2)
    first = driver.session.take(0.0)
    driver.steer("a")
    rest = driver.frames()
    assert first is not None and isinstance(first.message, wire.ChunkMetadata)
    assert rest[0].message is None
    assert isinstance(rest[1].message, wire.InteractionQueued)
    assert isinstance(rest[2].message, wire.ChunkMetadata) and rest[3].message is None


def test_a_retry_is_acknowledged_again_and_applied_once_and_another_use_of_the_id_is_refused() -> None:
    """RV-2, RV-4, RV-5."""
    driver = Driver().run()
    driver.steer("a")
    driver.steer("a")
    driver.steer("a", event={"prompt": "green"})
    queued = driver.messages()
    assert queued[:2] == [wire.InteractionQueued(request_id="video_stream-1", event_id="a")] * 2
    assert isinstance(queued[2], Error) and (queued[2].code, queued[2].event_id) == ("event_id_conflict", "a")
    assert len([effect for effect in driver.session.effects() if isinstance(effect, Steer)]) == 1


def test_an_interaction_without_an_id_gets_one() -> None:
    """RV-3."""
    driver = Driver().run()
    driver.steer()
    (queued,) = driver.messages()
    (effect,) = driver.session.effects()
    assert isinstance(queued, wire.InteractionQueued) and isinstance(effect, Steer)
    assert queued.event_id == effect.interaction.event_id


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"event": {"prompt": ""}}, "invalid_value"),
        ({"event": {"prompt": "x" * 5000}}, "invalid_value"),
        ({"event": {}}, "missing_field"),
        ({"event": {"camera": 1}}, "unknown_field"),
        ({"transition_chunks": -1}, "invalid_value"),
        ({"transition_chunks": True}, "invalid_value"),
        ({"transition_chunks": 1.5}, "invalid_value"),
        ({"mode": "later"}, "invalid_value"),
        ({"kv": "burn"}, "invalid_value"),
        ({"extra": 1}, "unknown_field"),
    ],
)
def test_a_malformed_interaction_is_refused_by_name_and_the_video_goes_on(fields: dict[str, Any], code: str) -> None:
    """RV-14: no `queued`, and the error names the event."""
    driver = Driver().run()
    driver.steer("a", **fields)
    assert driver.errors() == [(code, "a")]
    assert driver.session.effects() == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mode": "zap"}, "mode is 'zap'; it must be one of replace, append"),
        ({"kv": "zap"}, "kv is 'zap'; it must be one of keep, recache, reset or null"),
        ({"transition_chunks": 1001}, "transition_chunks is 1001; it must be an integer within 0..1000 or null"),
        ({"transition_chunks": 0.5}, "transition_chunks is 0.5; it must be an integer within 0..1000 or null"),
        ({"event_id": 5}, "event_id is 5; it must be a string or null"),
        ({"event": "snow"}, "event is 'snow'; it must be an object"),
    ],
)
def test_a_refused_field_of_an_interaction_says_its_value_and_what_is_allowed(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(StreamSynthError) as caught:
        parse_interaction({"event": {"prompt": "snow"}, **fields}, "drawn")
    assert (caught.value.message, caught.value.param) == (said, *fields)


def test_a_seed_may_be_steered_as_text_since_javascript_rounds_it() -> None:
    driver = Driver().run()
    driver.steer("a", event={"seed": str(2**63 - 1)})
    driver.steer("b", event={"seed": str(2**63)})
    (effect,) = driver.session.effects()
    assert isinstance(effect, Steer) and effect.interaction.event == {"seed": 2**63 - 1}
    assert driver.errors() == [("invalid_value", "b")]


def test_what_belongs_to_a_video_needs_one() -> None:
    driver = Driver()
    driver.session.receive(wire.PlaybackPosition(0), 0.0)
    driver.session.receive(wire.SessionStop(), 0.0)
    assert driver.errors() == [("config_required", None)] * 2


def test_interactions_are_for_a_video_that_runs() -> None:
    driver = Driver()
    driver.steer("early")
    driver.start()
    driver.steer("too early")
    driver.session.receive(wire.SessionStop(), 0.0)
    driver.steer("late")
    assert driver.errors() == [("interaction_not_active", name) for name in ("early", "too early", "late")]


def test_appended_interactions_are_bounded_until_the_worker_has_begun_one() -> None:
    driver = Driver().run()
    for number in range(MAX_APPENDED + 1):
        driver.steer(f"e{number}", mode=Mode.APPEND.value)
    assert driver.errors() == [("interaction_queue_full", f"e{MAX_APPENDED}")]
    driver.session.noticed(Applied("e0", 1, 12), 0.0)
    driver.steer("again", mode=Mode.APPEND.value)
    assert driver.errors() == []


def test_receipts_are_for_those_who_ask_and_a_refusal_is_for_all() -> None:
    """RV-10, V08."""
    for receipts in (True, False):
        driver = Driver().run(receipts=receipts)
        driver.session.noticed(Applied("a", 3, 33), 0.0)
        driver.session.noticed(Superseded("b", None), 0.0)
        refusal = StreamSynthError(ErrorCode.INTERACTION_FAILED, "no").to_wire()
        driver.session.noticed(Refused("c", refusal), 0.0)
        messages = driver.messages()
        assert isinstance(messages[-1], Error) and messages[-1].event_id == "c" and not messages[-1].fatal
        assert len(messages) == (3 if receipts else 1)
        if receipts:
            assert messages[0] == wire.InteractionApplied(
                request_id="video_stream-1", event_id="a", generation_chunk_index=3, pts=33 * TICKS
            )


def test_a_chunk_of_several_payloads_says_what_starts_first_and_what_completes_last() -> None:
    driver = Driver(video_message_bytes=10).run()
    parts = (Payload(b"x" * 25, 8, 12), Payload(b"y" * 4, 4, 20))
    driver.chunk(1, *parts, started=("a",), active=("a",), completed=("a",))
    frames = driver.frames()
    metadata = [frame.message for frame in frames if isinstance(frame.message, wire.ChunkMetadata)]
    assert [each.num_frames for each in metadata] == [8, 0, 0, 4]
    assert [each.byte_length for each in metadata] == [10, 10, 5, 4]
    assert [each.started_event_ids for each in metadata] == [("a",), (), (), ()]
    assert [each.completed_event_ids for each in metadata] == [(), (), (), ("a",)]
    assert {each.active_event_ids for each in metadata} == {("a",)}
    assert b"".join(bytes(frame.payload) for frame in frames if frame.message is None) == b"x" * 25 + b"y" * 4


def test_a_chunk_that_comes_in_parts_says_what_completes_with_its_last_part() -> None:
    driver = Driver().run()
    driver.chunk(1, started=("a",), active=("a",), completed=("a",), last=False)
    driver.chunk(1, started=("a",), active=("a",), completed=("a",))
    first, second = (each for each in driver.messages() if isinstance(each, wire.ChunkMetadata))
    assert (first.started_event_ids, first.completed_event_ids) == (("a",), ())
    assert (second.started_event_ids, second.completed_event_ids) == ((), ("a",))


def test_dropped_pictures_are_announced() -> None:
    driver = Driver().run(on_slow="drop_oldest")
    driver.session.pictures_dropped(Dropped(12, 24))
    assert driver.messages() == [wire.VideoDropped(request_id="video_stream-1", count=12, pts=24 * TICKS)]


def test_a_second_start_and_a_refused_first_one() -> None:
    driver = Driver().start(width=77)
    assert driver.errors() == [("invalid_value", None)]
    driver.start()
    driver.start()
    assert driver.errors() == [("already_started", None)]


def test_a_start_that_the_model_refuses_ends_nothing_and_the_time_for_another_begins_anew() -> None:
    driver = Driver().start(prompt="what nobody can paint")
    driver.session.video_opened("video_stream-1", 5)
    driver.session.effects()
    driver.session.start_refused(NO_PROMPT, 30.0)
    (error,) = driver.messages()
    assert error == Error(code="invalid_value", message="no", param="prompt", fatal=False, request_id="video_stream-1")
    assert driver.session.effects() == []
    assert driver.measured.endings == ["failed"]
    assert driver.session.next_tick_s == 30.0 + driver.limits.first_message_s
    driver.steer("a")
    driver.session.receive(wire.SessionStop(), 30.0)
    assert driver.errors() == [("interaction_not_active", "a"), ("config_required", None)]
    driver.run()
    driver.session.completed(chunks=1, frames=12, stopped=False, trailer=b"")
    driver.frames()
    assert driver.session.effects() == [End(1000, "session.done")]
    assert driver.measured.endings[:2] == ["failed", "completed"]


@pytest.mark.parametrize("leaving", ["stop", "drain"])
def test_who_leaves_while_the_video_starts_is_not_asked_for_another_start(leaving: str) -> None:
    driver = Driver().start()
    if leaving == "stop":
        driver.session.receive(wire.SessionStop(), 0.0)
    else:
        driver.session.drain("the server is shutting down", 0.0)
    driver.session.effects()
    driver.session.start_refused(NO_PROMPT, 0.0)
    end = driver.session.effects()[-1]
    assert isinstance(end, End) and end.error is not None and end.error.fatal


def test_a_failure_is_fatal_and_drops_what_waits() -> None:
    """V31: exactly one terminal event."""
    driver = Driver().run()
    driver.chunk(1)
    driver.session.failed(StreamSynthError(ErrorCode.WORKER_DIED, "it died"))
    stopped, end = driver.session.effects()
    assert isinstance(stopped, StopVideo)
    assert isinstance(end, End) and end.code == 1011 and end.error is not None and end.error.fatal
    assert driver.frames() == []
    driver.session.completed(chunks=1, frames=9, stopped=True, trailer=b"")
    assert driver.session.effects() == []
    assert driver.measured.endings[0] == "failed"


def test_draining_stops_the_video_and_closes_with_1001_when_its_end_is_sent_or_the_time_is_over() -> None:
    for finishes in (True, False):
        driver = Driver().run()
        driver.session.drain("the server is shutting down", 0.0)
        assert driver.session.effects() == [FinishVideo()]
        if finishes:
            driver.session.completed(chunks=1, frames=9, stopped=True, trailer=b"")
            driver.frames()
        else:
            driver.session.tick(driver.limits.drain_s)
        assert driver.session.effects()[-1] == End(1001, "the server is shutting down")


def test_a_session_that_is_not_started_in_time_is_closed() -> None:
    driver = Driver()
    assert driver.session.next_tick_s == driver.limits.first_message_s
    driver.session.tick(driver.limits.first_message_s)
    (end,) = driver.session.effects()
    assert isinstance(end, End) and end.code == 4001


def test_a_paced_video_waits_for_its_viewer_and_one_that_was_stopped_does_not() -> None:
    driver = Driver().run()  # 12 pictures at 16 fps are with the viewer, the lead is as much.
    assert driver.session.wait_s(12, 0.0) == 0.0
    driver.chunk(1)
    driver.frames()
    assert driver.session.wait_s(24, 0.0) == pytest.approx(0.75)
    assert driver.session.wait_s(24, 0.5) == pytest.approx(0.25)
    driver.session.receive(wire.PlaybackPosition(0), 0.5)  # The viewer has paused at the start.
    assert driver.session.wait_s(24, 0.5) == pytest.approx(0.75)
    driver.session.receive(wire.SessionStop(), 0.5)
    assert driver.session.wait_s(24, 0.5) == 0.0
    assert Driver().run(pacing="none").session.wait_s(240, 0.0) == 0.0


def test_a_client_that_sends_and_never_reads_is_closed() -> None:
    driver = Driver(outbound_message_bytes=1024).run()
    for _ in range(100):
        driver.session.receive(SessionPing(), 0.0)
    end = driver.session.effects()[-1]
    assert isinstance(end, End) and end.code == 4002


EVENTS = st.lists(
    st.sampled_from(
        ["start", "opened", "refuse", "begun", "chunk", "steer", "stop", "take", "fail", "done", "drain", "lost"]
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(EVENTS)
def test_whatever_happens_in_whatever_order_a_session_ends_once_and_pairs_stay_whole(events: list[str]) -> None:
    driver = Driver()
    taken: list[Frame] = []
    effects: list[object] = []
    chunk = itertools.count()
    for event in events:
        match event:
            case "start":
                driver.start()
            case "opened":
                driver.session.video_opened("video_stream-1", 1)
            case "refuse":
                driver.session.start_refused(NO_PROMPT, 0.0)
            case "begun":
                driver.session.video_begun("c", "m", b"h")
            case "chunk":
                driver.chunk(next(chunk))
            case "steer":
                driver.steer()
            case "stop":
                driver.session.receive(wire.SessionStop(), 0.0)
            case "take":
                frame = driver.session.take(0.0)
                taken += [frame] if frame is not None else []
            case "fail":
                driver.session.failed(StreamSynthError(ErrorCode.ENGINE_FAILED, "x"))
            case "done":
                driver.session.completed(chunks=0, frames=0, stopped=True, trailer=b"")
            case "drain":
                driver.session.drain("bye", 0.0)
            case "lost":
                driver.session.lost()
        effects += driver.session.effects()
    assert sum(isinstance(effect, End) for effect in effects) <= 1
    assert sum(isinstance(effect, StopVideo) for effect in effects) <= 1
    for before, after in itertools.pairwise(taken):
        assert isinstance(before.message, wire.ChunkMetadata) == (after.message is None)
