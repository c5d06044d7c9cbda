"""What waits to be sent: order, purge, and the two measures of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamsynth.realtime.frame_queue import Frame, FrameQueue, audio_frame, text_frame
from streamsynth.realtime.messages import SessionPong
from streamsynth.realtime.speech_messages import AudioStart


def audio(utterance: int, samples: int = 2400) -> Frame:
    return audio_frame(bytes(2 * samples), utterance=utterance, samples=samples, sample_rate=24_000)


def drained(queue: FrameQueue) -> list[Frame]:
    frames = []
    while (frame := queue.take()) is not None:
        frames.append(frame)
    return frames


def test_frames_come_out_as_they_went_in() -> None:
    frames = [audio(0), text_frame(SessionPong()), audio(1)]
    queue = FrameQueue()
    for frame in frames:
        queue.put(frame)
    assert drained(queue) == frames


def test_a_purge_takes_every_frame_of_one_utterance_and_no_other() -> None:
    """S37"""
    kept = [audio(1), text_frame(SessionPong()), text_frame(SessionPong(), utterance=1)]
    queue = FrameQueue()
    for frame in (audio(0), kept[0], text_frame(SessionPong(), utterance=0), kept[1], audio(0), kept[2]):
        queue.put(frame)
    queue.purge(0)
    assert drained(queue) == kept


def test_the_container_of_audio_is_not_an_answer() -> None:
    """Room is asked for it as for audio, so a long sentence must not look like a client that never reads."""
    start = AudioStart(
        utterance_index=0,
        sentence_index=0,
        sentence_text="x" * 1000,
        format="pcm",
        sample_rate=1,
        channels=1,
        request_id="",
    )
    queue = FrameQueue()
    queue.put(text_frame(start, utterance=0))
    assert queue.answer_bytes == 0
    queue.put(text_frame(SessionPong()))
    assert queue.answer_bytes == len(b'{"type":"session.pong"}')


@given(st.lists(st.tuples(st.sampled_from("ptuc"), st.integers(0, 3), st.integers(0, 5000)), max_size=40))
def test_the_measures_always_equal_what_is_queued(steps: list[tuple[str, int, int]]) -> None:
    queue = FrameQueue()
    model: list[Frame] = []
    for what, utterance, samples in steps:
        match what:
            case "p":
                model.append(
                    audio(utterance, samples) if samples % 2 else text_frame(SessionPong(), utterance=utterance)
                )
                queue.put(model[-1])
            case "t":
                assert queue.take() == (model.pop(0) if model else None)
            case "u":
                queue.purge(utterance)
                model = [frame for frame in model if frame.utterance != utterance]
            case "c" if samples > 4900:
                queue.clear()
                model.clear()
        assert queue.media_us == sum(frame.media_us for frame in model)
        assert queue.answer_bytes == sum(len(frame.payload) for frame in model if frame.is_text)
        assert len(queue) == len(model)
