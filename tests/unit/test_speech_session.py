"""The speech session's state machine, message by message."""

from __future__ import annotations

from typing import Any

import pytest
from session_driver import PCM, SENTENCES, Driver, kind

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime import speech_messages as wire
from streamsynth.realtime.speech_events import (
    Audio,
    ContainerStart,
    End,
    FinishText,
    PushText,
    StartSynthesis,
    StopSynthesis,
)

WHOLE = ["audio.start", "audio", "audio.done", "session.done"]
CANCELLED = ["input.cancelled", "session.done"]


def configured(**limits: Any) -> Driver:
    return Driver(config=PCM, **limits)


def error_of(message: Any) -> tuple[str, int | None]:
    assert isinstance(message, wire.Error)
    assert not message.fatal
    return message.code, message.utterance_index


# One utterance


def test_an_utterance_is_start_audio_done_and_session_done() -> None:
    """SP-1, SP-14"""
    drive = configured()
    drive.speak("hello")
    drive.make(0, frames=2)
    start, first, second, done, end = drive.sent()
    assert start == wire.AudioStart(
        utterance_index=0,
        sentence_index=0,
        sentence_text="words",
        format="pcm",
        sample_rate=24_000,
        channels=1,
        request_id="utt-0",
    )
    assert (first, second) == (480, 480)
    assert done == wire.AudioDone(utterance_index=0, sentence_index=0, total_bytes=1920, total_samples=960, error=False)
    assert end == wire.SessionDone(
        utterance_index=0, total_sentences=1, status="completed", total_samples=960, finish_reason="stop"
    )
    assert not drive.session.ended


def test_text_is_joined_byte_for_byte_into_one_request() -> None:
    """SP-3, S62: nothing is stripped, and a space alone counts."""
    drive = configured()
    for piece in ("Todo ", "listo.", " ", "\n", "A. B. C."):
        drive.text(piece)
    assert drive.effects() == []
    drive.done()
    _, push, finish = drive.effects()
    assert (push, finish) == (PushText(0, "Todo listo. \nA. B. C."), FinishText(0))


def test_the_config_and_the_indexes_carry_over_to_later_utterances() -> None:
    """SP-2, SP-15"""
    drive = configured()
    for index in range(3):
        drive.speak("again")
        start, *_ = drive.effects()
        assert isinstance(start, StartSynthesis)
        assert (start.index, start.settings.stream_audio) == (index, True)
        drive.make(index)
        messages = drive.sent()
        assert {message.utterance_index for message in messages if not isinstance(message, int)} == {index}
        assert messages[0].sentence_index == 0


@pytest.mark.parametrize("text", ["", " ", ".", "🙂", "…?!\n"])
def test_a_flush_without_a_speakable_character_is_an_empty_utterance(text: str) -> None:
    """SP-4, S64"""
    drive = configured()
    drive.text(text)
    drive.done()
    assert drive.effects() == []
    assert drive.sent() == [
        wire.SessionDone(utterance_index=0, total_sentences=0, status="completed", total_samples=0, finish_reason=None)
    ]


def test_an_empty_flush_uses_an_index_up() -> None:
    """S40, SP-15: nothing else is created by it."""
    drive = configured()
    for _ in range(100):
        drive.done()
    assert [message.utterance_index for message in drive.sent()] == list(range(100))
    assert drive.session.unfinished == 0


def test_an_engine_that_made_nothing_ends_an_empty_utterance() -> None:
    """S64: text of which the model found nothing to say."""
    drive = configured()
    drive.speak("hm")
    drive.complete(0)
    (done,) = drive.sent()
    assert (done.total_sentences, done.status, done.total_samples) == (0, "completed", 0)


def test_a_second_utterance_waits_for_the_first_to_be_made() -> None:
    """S15: answered in order, one request of a session at a time."""
    drive = configured()
    drive.speak("one")
    drive.speak("two")
    drive.done()
    assert [effect.index for effect in drive.effects()] == [0, 0, 0]
    drive.make(0)
    assert [effect.index for effect in drive.effects()] == [1, 1, 1]
    drive.make(1)
    indexes = [message.utterance_index for message in drive.sent() if not isinstance(message, int)]
    assert indexes == [0, 0, 0, 1, 1, 1, 2]


def test_text_after_a_flush_belongs_to_the_next_utterance() -> None:
    drive = configured()
    drive.speak("one")
    drive.text("two")
    assert [effect for effect in drive.effects() if isinstance(effect, PushText)] == [PushText(0, "one")]
    drive.done()
    drive.make(0)
    assert PushText(1, "two") in drive.effects()


def test_several_containers_count_as_sentences() -> None:
    drive = Driver(config=SENTENCES)
    drive.speak("One. Two.")
    for text in ("One.", "Two."):
        drive.start(0, text)
        drive.audio(0)
        drive.end(0)
    drive.complete(0, "length")
    messages = [message for message in drive.sent() if not isinstance(message, int)]
    assert [message.sentence_index for message in messages[:-1]] == [0, 0, 1, 1]
    assert (messages[-1].total_sentences, messages[-1].total_samples) == (2, 960)
    assert messages[-1].finish_reason == "length"


def test_an_utterance_cut_before_its_flush_is_answered_by_the_flush() -> None:
    """S65: one `session.done` a flush, and none before it; text behind the limit belongs to what was cut."""
    drive = Driver(config={**SENTENCES, "close_on_done": True})
    drive.text("One. Two. ")
    drive.start(0, "One. ")
    drive.audio(0)
    drive.end(0)
    drive.complete(0, "length")
    assert "session.done" not in drive.types()
    drive.text("Three. ")
    drive.wait(1000)
    assert drive.end_effect() is None, "an utterance is open"
    drive.done()
    (done,) = drive.sent()
    assert (done.utterance_index, done.status, done.finish_reason) == (0, "completed", "length")
    end = drive.end_effect()
    assert end is not None and end.code == 1000


def test_an_utterance_cut_before_its_flush_can_be_cancelled() -> None:
    """S38: what follows the cancel is the next utterance, not the rest of the one that was cut."""
    drive = Driver(config=SENTENCES)
    drive.text("One. Two. ")
    drive.start(0, "One. ")
    drive.audio(0)
    drive.end(0)
    drive.complete(0, "length")
    drive.sent()
    drive.cancel()
    cancelled, done = drive.sent()
    assert (cancelled.utterance_index, cancelled.samples_sent) == (0, 480)
    assert (done.status, done.finish_reason) == ("cancelled", None)
    drive.speak("Next.")
    assert PushText(1, "Next.") in drive.effects()


def test_a_sentence_text_that_does_not_fit_into_a_message_is_null() -> None:
    """S73: no message is above 256 KiB."""
    drive = configured()
    drive.speak("x")
    drive.start(0, "\x01" * 65_536)
    frame = drive.take()
    assert frame is not None
    assert isinstance(frame.message, wire.AudioStart)
    assert frame.message.sentence_text is None
    assert len(frame.payload) < 1024


# Synthesis before the flush


def test_with_a_granularity_synthesis_starts_with_the_first_speakable_text() -> None:
    drive = Driver(config=SENTENCES)
    drive.text(" (")
    assert drive.effects() == []
    drive.text("Hi")
    start, push = drive.effects()
    assert isinstance(start, StartSynthesis)
    assert push == PushText(0, " (Hi")
    drive.text(" there. ")
    drive.done()
    assert drive.effects() == [PushText(0, " there. "), FinishText(0)]


def test_an_open_utterance_behind_another_starts_when_its_turn_comes() -> None:
    drive = Driver(config=SENTENCES)
    drive.speak("One.")
    drive.text("Two. ")
    assert {effect.index for effect in drive.effects()} == {0}
    drive.make(0)
    start, push = drive.effects()
    assert (start.index, push) == (1, PushText(1, "Two. "))


def test_audio_may_leave_before_the_flush() -> None:
    drive = Driver(config=SENTENCES)
    drive.text("One. ")
    drive.start(0)
    drive.audio(0)
    assert drive.types() == ["audio.start", "audio"]


# Config


@pytest.mark.parametrize("message", [wire.InputText("hello"), wire.InputText(""), wire.InputDone(), wire.InputCommit()])
def test_text_and_flush_before_a_config_are_refused(message: wire.ClientMessage) -> None:
    drive = Driver()
    drive.say(message)
    (error,) = drive.sent()
    assert error_of(error) == ("config_required", None)
    drive.configure(**PCM)
    drive.done()
    assert [message.utterance_index for message in drive.sent()] == [0]


def test_a_different_config_while_an_utterance_is_open_changes_nothing() -> None:
    """SP-5, S42"""
    drive = configured()
    drive.text("keep me")
    drive.configure(response_format="wav")
    (error,) = drive.sent()
    assert error_of(error) == ("config_while_open", None)
    drive.done()
    start, push, _ = drive.effects()
    assert start.settings.speech.format == "pcm"
    assert push == PushText(0, "keep me")


def test_an_equal_config_is_accepted_while_an_utterance_is_open() -> None:
    """S42: idempotent, however it is written, and the text survives."""
    drive = configured()
    drive.text("keep me")
    drive.configure(**PCM, voice=None, model="tts-1", ack=True)
    assert drive.types() == ["session.configured"]
    drive.done()
    assert PushText(0, "keep me") in drive.effects()


def test_empty_text_does_not_open_an_utterance() -> None:
    """S66"""
    drive = configured()
    drive.text("")
    drive.configure(response_format="wav")
    assert drive.sent() == []
    assert drive.session.unfinished == 0


def test_a_config_after_the_flush_applies_to_the_next_utterance() -> None:
    """SP-6: also while the earlier one speaks."""
    drive = configured()
    drive.speak("one")
    drive.configure(response_format="flac")
    drive.speak("two")
    first, *_ = drive.effects()
    drive.make(0)
    second, *_ = drive.effects()
    assert (first.settings.speech.format, second.settings.speech.format) == ("pcm", "flac")
    assert "error" not in drive.types()


def test_a_config_is_whole_and_not_a_change_of_the_last_one() -> None:
    drive = configured()
    drive.configure(speed=2, ack=True)
    (answer,) = drive.sent()
    assert (answer.config.response_format, answer.config.stream_audio, answer.config.speed) == ("wav", False, 2.0)


def test_a_config_is_answered_only_if_it_asks() -> None:
    drive = Driver()
    drive.configure(**PCM, instructions="softly")
    assert drive.sent() == []
    drive.configure(**PCM, instructions="softly", ack=True, seed="9223372036854775807")
    (answer,) = drive.sent()
    assert answer.ignored == ("instructions",)
    assert answer.config.seed == "9223372036854775807"
    assert answer.limits["text_characters"] == 65_536
    assert answer.limits["lead_s"] == 10.0


def test_a_refused_config_names_the_field_and_leaves_the_old_one_in_force() -> None:
    drive = configured()
    drive.configure(response_format="ogg")
    (error,) = drive.sent()
    assert (error.code, error.param, error.fatal) == ("invalid_value", "response_format", False)
    drive.speak("x")
    start, *_ = drive.effects()
    assert start.settings.speech.format == "pcm"


def test_word_timestamps_are_refused_by_name() -> None:
    drive = Driver()
    drive.configure(**PCM, word_timestamps=True)
    (error,) = drive.sent()
    assert (error.code, error.param) == ("unsupported_field", "word_timestamps")


# Cancel


def test_cancelling_an_open_utterance_consumes_its_index() -> None:
    drive = configured()
    drive.text("never mind")
    drive.cancel()
    cancelled, done = drive.sent()
    assert cancelled == wire.InputCancelled(utterance_index=0, samples_sent=0)
    assert (done.utterance_index, done.status, done.total_sentences) == (0, "cancelled", 0)
    drive.done()
    (empty,) = drive.sent()
    assert (empty.utterance_index, empty.status) == (1, "completed")
    assert drive.effects() == []


def test_cancelling_a_queued_utterance_overtakes_the_one_that_speaks() -> None:
    """S38: valid before it started; the audio of the first goes on."""
    drive = configured()
    drive.speak("one")
    drive.speak("two")
    drive.cancel(1)
    assert drive.types() == CANCELLED
    drive.make(0)
    assert drive.types() == WHOLE
    assert not any(effect.index == 1 for effect in drive.effects())


def test_cancelling_before_the_first_audio_stops_the_synthesis() -> None:
    """S38: what it still makes is not sent, in this utterance or the next."""
    drive = configured()
    drive.speak("one")
    drive.effects()
    drive.cancel(0)
    assert drive.effects() == [StopSynthesis(0)]
    drive.make(0)
    assert drive.types() == CANCELLED


def test_cancelling_in_mid_audio_purges_what_is_queued() -> None:
    """S37, S44: the acknowledgement says what was sent, and nothing of it follows."""
    drive = configured()
    drive.speak("one")
    drive.start(0)
    for _ in range(20):
        drive.audio(0)
    assert drive.types(4) == ["audio.start", "audio", "audio", "audio"]
    drive.cancel(0)
    drive.audio(0)
    cancelled, done = drive.sent()
    assert cancelled.samples_sent == 3 * 480
    assert (done.status, done.total_sentences, done.total_samples) == ("cancelled", 1, 3 * 480)


def test_a_sentence_that_was_queued_and_purged_does_not_count() -> None:
    drive = configured()
    drive.speak("one")
    drive.make(0)
    drive.cancel(0)
    _, done = drive.sent()
    assert (done.total_sentences, done.total_samples, done.status) == (0, 0, "cancelled")


def test_cancelling_between_the_last_frame_and_session_done_works() -> None:
    """The one `session.done` then says cancelled."""
    drive = configured()
    drive.speak("one")
    drive.make(0)
    assert drive.types(3) == WHOLE[:3]
    drive.cancel(0)
    cancelled, done = drive.sent()
    assert (cancelled.samples_sent, done.status) == (480, "cancelled")


def test_a_cancel_after_session_done_was_sent_is_not_active() -> None:
    drive = configured()
    drive.speak("one")
    drive.make(0)
    drive.sent()
    drive.cancel(0)
    (error,) = drive.sent()
    assert error_of(error) == ("cancel_not_active", 0)


@pytest.mark.parametrize("index", [None, 0, 7, -1])
def test_a_cancel_of_nothing_is_not_fatal_and_echoes_the_index(index: int | None) -> None:
    """S47"""
    drive = configured()
    drive.cancel(index)
    (error,) = drive.sent()
    assert error_of(error) == ("cancel_not_active", index)
    drive.speak("still here")
    assert len(drive.effects()) == 3


def test_a_second_cancel_of_the_same_utterance_is_not_active() -> None:
    drive = configured()
    drive.text("x")
    drive.cancel(0)
    drive.cancel(0)
    assert drive.types() == [*CANCELLED, "error"]


def test_a_cancel_without_an_index_drops_everything_unfinished() -> None:
    drive = configured()
    drive.speak("one")
    drive.make(0)
    drive.speak("two")
    drive.start(1)
    drive.speak("three")
    drive.done()
    drive.text("open")
    drive.effects()
    drive.cancel()
    assert drive.effects() == [StopSynthesis(1)]
    messages = drive.sent()
    assert [(kind(message), message.utterance_index) for message in messages] == [
        (name, index) for index in range(5) for name in CANCELLED
    ]
    assert drive.session.unfinished == 0


def test_cancel_and_a_new_utterance_in_one_packet_work() -> None:
    """S45: the acknowledgement comes first, then the new utterance, without waiting for the old one's end."""
    drive = configured()
    drive.speak("one")
    drive.start(0)
    drive.audio(0)
    drive.effects()
    drive.cancel()
    drive.speak("two")
    assert [type(effect) for effect in drive.effects()] == [StopSynthesis, StartSynthesis, PushText, FinishText]
    drive.make(1)
    assert drive.types() == [*CANCELLED, *WHOLE]


def test_cancelling_what_speaks_lets_the_next_one_speak() -> None:
    drive = configured()
    drive.speak("one")
    drive.speak("two")
    drive.effects()
    drive.cancel(0)
    assert [(type(effect), effect.index) for effect in drive.effects()][:2] == [(StopSynthesis, 0), (StartSynthesis, 1)]


def test_twenty_utterances_made_and_cancelled_leave_nothing() -> None:
    """S39"""
    drive = configured(session_utterances=2)
    for _ in range(20):
        drive.speak("quick")
        drive.cancel()
    assert drive.types() == CANCELLED * 20
    assert drive.session.unfinished == 0
    assert not drive.session.ended


def test_the_time_to_the_acknowledgement_is_measured() -> None:
    drive = configured()
    drive.text("x")
    drive.cancel()
    drive.now += 0.25
    drive.sent()
    assert drive.observed.acknowledged_s == [0.25]


# Failure


def test_a_failure_after_audio_ends_the_container_and_the_utterance() -> None:
    """S44, SP-10: the session serves the next utterance."""
    drive = configured()
    drive.speak("one")
    drive.start(0)
    drive.audio(0)
    drive.fail(0, ErrorCode.WORKER_DIED)
    start, audio, error, done, end = drive.sent()
    assert (kind(start), audio) == ("audio.start", 480)
    assert error_of(error) == ("worker_died", 0)
    assert (error.partial_audio, error.request_id) == (True, "utt-0")
    assert (done.error, done.total_bytes, done.total_samples) == (True, 960, 480)
    assert (end.status, end.total_sentences, end.finish_reason) == ("failed", 1, None)
    drive.effects()
    drive.speak("two")
    assert len(drive.effects()) == 3


def test_a_failure_before_audio_has_no_container() -> None:
    drive = configured()
    drive.speak("one")
    drive.fail(0, ErrorCode.OVERLOADED)
    error, end = drive.sent()
    assert error_of(error) == ("overloaded", 0)
    assert error.partial_audio is False
    assert (end.status, end.total_sentences, end.total_samples) == ("failed", 0, 0)


def test_a_failure_before_the_flush_is_said_at_once_and_answered_at_the_flush() -> None:
    """Every flush has exactly one `session.done`, also when the worker dies under an open utterance."""
    drive = Driver(config=SENTENCES)
    drive.text("One. ")
    drive.start(0)
    drive.audio(0)
    drive.fail(0, ErrorCode.WORKER_DIED)
    assert drive.types() == ["audio.start", "audio", "error", "audio.done"]
    drive.text("Two. ")
    assert drive.sent() == []
    drive.done()
    (end,) = drive.sent()
    assert (end.utterance_index, end.status) == (0, "failed")
    drive.effects()
    drive.speak("Three.")
    assert len(drive.effects()) == 3


def test_a_failed_open_utterance_can_be_cancelled() -> None:
    drive = Driver(config=SENTENCES)
    drive.text("One. ")
    drive.fail(0)
    drive.cancel()
    assert drive.types() == CANCELLED


def test_a_failure_lets_the_next_utterance_speak() -> None:
    drive = configured()
    drive.speak("one")
    drive.speak("two")
    drive.effects()
    drive.fail(0)
    start, *_ = drive.effects()
    assert start.index == 1


def test_events_of_an_utterance_that_does_not_speak_are_ignored() -> None:
    """S37, V22: also those that were already on their way when it ended."""
    drive = configured()
    drive.speak("one")
    drive.make(0)
    drive.sent()
    drive.make(0)
    drive.fail(0)
    drive.make(5)
    assert drive.sent() == []


# Limits


def test_the_text_limit_counts_across_messages_and_leaves_the_buffer_unchanged() -> None:
    drive = configured(text_characters=10)
    drive.text("12345678")
    drive.text("90x")
    (error,) = drive.sent()
    assert error_of(error) == ("text_too_long", 0)
    assert "11 characters" in error.message
    assert "10" in error.message
    drive.text("90")
    drive.done()
    assert PushText(0, "1234567890") in drive.effects()


def test_text_that_is_too_long_by_itself_opens_nothing() -> None:
    drive = configured(text_characters=3)
    drive.text("1234")
    assert error_of(drive.sent()[0]) == ("text_too_long", 0)
    assert drive.session.unfinished == 0
    drive.configure(response_format="wav")
    assert drive.sent() == []


def test_the_text_limit_holds_for_text_that_was_spoken_already() -> None:
    drive = Driver(config=SENTENCES, text_characters=10)
    drive.text("123456789.")
    drive.text("x")
    assert error_of(drive.sent()[0]) == ("text_too_long", 0)


def test_too_many_unfinished_utterances_fail_one_by_one_and_never_the_session() -> None:
    """S39: over the limit is an error of that utterance, answered at once."""
    drive = configured(session_utterances=3)
    for _ in range(5):
        drive.speak("x")
    messages = drive.sent()
    assert [(kind(message), message.utterance_index) for message in messages] == [
        ("error", 3),
        ("session.done", 3),
        ("error", 4),
        ("session.done", 4),
    ]
    assert {message.code for message in messages[::2]} == {"overloaded"}
    assert messages[0].retry_after_ms is not None
    assert {message.status for message in messages[1::2]} == {"failed"}
    drive.make(0)
    drive.sent()
    drive.speak("y")
    assert drive.sent() == []


def test_a_client_that_never_reads_its_answers_is_ended() -> None:
    """Answers are bounded as audio is: pings without reading must not fill the memory."""
    drive = configured()
    for _ in range(20_000):
        drive.say(wire.SessionPing())
    end = drive.end_effect()
    assert end is not None
    assert (end.code, end.error and end.error.code) == (4002, "stalled_reader")
    assert drive.sent() == []


def test_too_many_answers_in_the_middle_of_a_cancel_end_the_session_once() -> None:
    drive = configured(outbound_message_bytes=1500, session_utterances=100)
    for _ in range(50):
        drive.speak("x")
    drive.cancel()
    end = drive.end_effect()
    assert end is not None
    assert end.code == 4002


def test_a_message_that_is_too_large_is_fatal() -> None:
    drive = configured()
    drive.session.refuse(StreamSynthError(ErrorCode.MESSAGE_TOO_LARGE, "too large"))
    end = drive.end_effect()
    assert end is not None
    assert (end.code, end.error and end.error.fatal) == (1009, True)


def test_a_binary_message_is_fatal() -> None:
    drive = configured()
    drive.session.refuse(StreamSynthError(ErrorCode.BINARY_NOT_ALLOWED, "text only"))
    end = drive.end_effect()
    assert end is not None
    assert (end.code, end.error and end.error.code) == (1003, "binary_not_allowed")


def test_what_waits_to_be_sent_is_measured_in_media_time() -> None:
    drive = configured()
    drive.speak("x")
    drive.start(0)
    drive.audio(0, 12_000)
    drive.audio(0, 12_000)
    assert drive.session.queued_media_s == 1.0
    drive.sent(2)
    assert drive.session.queued_media_s == 0.5
    drive.cancel()
    assert drive.session.queued_media_s == 0.0


# Clocks


def test_without_a_config_the_session_ends_after_the_first_message_time() -> None:
    drive = Driver()
    drive.wait(9.9)
    assert drive.end_effect() is None
    drive.wait(0.2)
    end = drive.end_effect()
    assert end is not None
    assert (end.code, end.error and end.error.code) == (4001, "no_first_message")


def test_a_refused_first_config_and_pings_leave_the_clock_running() -> None:
    drive = Driver()
    drive.wait(8)
    drive.configure(response_format="ogg")
    drive.say(wire.SessionPing())
    assert drive.session.next_tick_s == 110.0
    drive.wait(2)
    assert drive.end_effect() is not None


def test_an_idle_session_is_closed_with_a_typed_error() -> None:
    """SP-9, S31, S56"""
    drive = configured()
    drive.wait(59.9)
    assert drive.end_effect() is None
    drive.wait(0.2)
    end = drive.end_effect()
    assert end is not None
    assert (end.code, end.error and (end.error.code, end.error.fatal)) == (4000, ("idle_timeout", True))
    assert end.reason.startswith("idle_timeout: ")


def test_a_session_ping_keeps_a_session() -> None:
    """S56"""
    drive = configured()
    for _ in range(5):
        drive.wait(50)
        drive.say(wire.SessionPing())
    assert drive.end_effect() is None
    assert drive.types() == ["session.pong"] * 5


@pytest.mark.parametrize("state", ["open", "queued", "being sent"])
def test_the_idle_clock_stands_while_anything_is_unfinished(state: str) -> None:
    drive = configured()
    drive.text("x")
    if state != "open":
        drive.done()
    if state == "being sent":
        drive.make(0)
    drive.wait(3600)
    assert drive.end_effect() is None


def test_the_idle_clock_starts_when_the_last_frame_was_taken() -> None:
    drive = configured()
    drive.speak("x")
    drive.make(0)
    drive.wait(100)
    drive.sent()
    drive.wait(59)
    assert drive.end_effect() is None
    assert drive.session.next_tick_s == 260.0
    drive.wait(1)
    assert drive.end_effect() is not None


def test_a_session_that_is_too_old_finishes_what_it_speaks_and_leaves() -> None:
    drive = configured(session_s=1000, idle_s=5000)
    drive.wait(999)
    drive.speak("x")
    drive.wait(1)
    assert drive.end_effect() is None
    drive.make(0)
    drive.sent()
    end = drive.end_effect()
    assert end is not None
    assert end.code == 1001


# Endings


def test_session_close_ends_everything_with_the_close_frame_alone() -> None:
    """SP-7"""
    drive = configured()
    drive.speak("one")
    drive.start(0)
    drive.audio(0)
    drive.say(wire.SessionPing())
    drive.effects()
    drive.say(wire.SessionClose())
    assert drive.effects() == [StopSynthesis(0), End(1000, "session.close")]
    drive.audio(0)
    drive.text("more")
    drive.cancel()
    drive.wait(10_000)
    assert drive.sent() == []
    assert drive.effects() == []
    assert drive.session.unfinished == 0
    assert drive.observed.meters[0].statuses == ["cancelled"]


def test_close_on_done_closes_after_the_next_session_done_was_sent() -> None:
    drive = configured()
    drive.speak("one")
    drive.configure(**PCM, close_on_done=True)
    drive.make(0)
    assert drive.types() == WHOLE
    assert drive.end_effect() is None
    drive.speak("two")
    drive.speak("three")
    drive.make(1)
    assert drive.end_effect() is None
    assert drive.types() == WHOLE
    end = drive.end_effect()
    assert end is not None
    assert (end.code, end.error) == (1000, None)


@pytest.mark.parametrize("how", ["empty", "failed", "cancelled"])
def test_close_on_done_closes_however_the_utterance_ended(how: str) -> None:
    drive = Driver(config={**PCM, "close_on_done": True})
    if how == "empty":
        drive.done()
    else:
        drive.speak("x")
    if how == "failed":
        drive.fail(0)
    if how == "cancelled":
        drive.cancel()
    assert drive.types()[-1] == "session.done"
    assert drive.end_effect() is not None


def test_close_on_done_waits_for_earlier_utterances() -> None:
    """A cancelled utterance may overtake; the close must not swallow what earlier flushes are still owed."""
    drive = configured()
    drive.speak("one")
    drive.configure(**PCM, close_on_done=True)
    drive.speak("two")
    drive.cancel(1)
    assert drive.types() == CANCELLED
    assert drive.end_effect() is None
    drive.make(0)
    assert drive.types() == WHOLE
    assert drive.end_effect() is not None


def test_close_on_done_waits_for_answers_to_cancels_that_are_still_queued() -> None:
    drive = configured()
    drive.speak("one")
    drive.configure(**PCM, close_on_done=True)
    drive.speak("two")
    drive.cancel(1)
    drive.cancel(0)
    assert drive.types(2) == CANCELLED
    assert drive.end_effect() is None
    assert drive.types() == CANCELLED
    assert drive.end_effect() is not None


def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    drive = configured()
    drive.speak("one")
    drive.speak("two")
    drive.session.drain("the server is shutting down", drive.now)
    drive.speak("three")
    error, refused = drive.sent()
    assert error_of(error) == ("shutting_down", 2)
    assert (refused.utterance_index, refused.status) == (2, "failed")
    for index in (0, 1):
        assert drive.end_effect() is None
        drive.make(index)
        assert drive.types() == WHOLE
    end = drive.end_effect()
    assert end is not None
    assert (end.code, end.reason, end.error) == (1001, "the server is shutting down", None)


def test_draining_ends_a_session_that_does_nothing_at_once() -> None:
    drive = configured()
    drive.text("half a senten")
    drive.session.drain("bye", drive.now)
    end = drive.end_effect()
    assert end is not None
    assert end.code == 1001


def test_draining_has_an_end() -> None:
    drive = configured(drain_s=10)
    drive.speak("one")
    drive.session.drain("bye", drive.now)
    assert drive.session.next_tick_s == 110.0
    drive.wait(10)
    end = drive.end_effect()
    assert end is not None
    assert end.code == 1001
    assert StopSynthesis(0) in drive.all_effects


def test_an_open_utterance_is_not_started_while_draining() -> None:
    drive = Driver(config=SENTENCES)
    drive.speak("One.")
    drive.session.drain("bye", drive.now)
    drive.text("Two. ")
    drive.make(0)
    assert not any(isinstance(effect, StartSynthesis) and effect.index == 1 for effect in drive.effects())


def test_expiry_ends_a_session_now() -> None:
    drive = configured()
    drive.speak("one")
    drive.session.expire()
    end = drive.end_effect()
    assert end is not None
    assert end.code == 1001


def test_a_stalled_reader_is_told_and_closed() -> None:
    """S36"""
    drive = configured()
    drive.speak("x")
    drive.start(0)
    drive.session.stalled()
    end = drive.end_effect()
    assert end is not None
    assert (end.code, end.error and end.error.code) == (4002, "stalled_reader")
    assert StopSynthesis(0) in drive.all_effects
    assert drive.sent() == []


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (lambda session: session.closed_by_peer(), 1000),
        (lambda session: session.peer_died(), 1011),
        (lambda session: session.misframed(1002, "bad opcode"), 1002),
        (lambda session: session.crashed(), 1011),
    ],
)
def test_every_other_end_stops_the_synthesis_and_closes_once(event: Any, code: int) -> None:
    drive = configured()
    drive.speak("x")
    drive.effects()
    event(drive.session)
    event(drive.session)
    stop, end = drive.effects()
    assert stop == StopSynthesis(0)
    assert isinstance(end, End)
    assert end.code == code


def test_a_lost_connection_stops_the_synthesis_and_says_nothing() -> None:
    """SP-8, S25"""
    drive = configured()
    drive.speak("x")
    drive.start(0)
    drive.effects()
    drive.session.lost()
    assert drive.effects() == [StopSynthesis(0)]
    assert drive.sent() == []
    assert drive.session.next_tick_s is None


# Measurement


def test_an_utterance_is_measured_from_its_turn_to_the_transport() -> None:
    drive = configured()
    drive.speak("one")
    drive.speak("two")
    drive.now += 1
    drive.make(0)
    drive.now += 1
    drive.sent()
    first, second = drive.observed.meters
    assert (first.started_s, first.sent_samples, first.statuses) == (100.0, [(480, 102.0)], ["completed"])
    assert (second.started_s, second.statuses) == (101.0, [])


def test_refusals_are_counted_by_code() -> None:
    drive = configured()
    drive.cancel()
    drive.session.refuse(StreamSynthError(ErrorCode.INVALID_JSON, "no"))
    drive.speak("x")
    drive.fail(0)
    assert drive.observed.refusals == ["cancel_not_active", "invalid_json", "engine_failed"]


def test_audio_in_the_wrong_place_is_a_fault_of_ours_and_not_silent() -> None:
    drive = configured()
    drive.speak("x")
    with pytest.raises(AssertionError):
        drive.session.synthesis_made(0, Audio(b"\0\0", 1))
    drive.session.synthesis_made(0, ContainerStart(None, "pcm", 24_000, 1))
    drive.session.synthesis_made(0, Audio(b"\0\0", 1))
