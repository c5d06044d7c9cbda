"""The Python API does the same, and refuses the same, over the models of this process and over a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamsynth import AudioChunk, ErrorCode, SpeechSession, StreamSynth, StreamSynthError, Utterance
from streamsynth.graph.flow import Status
from streamsynth.session import MAX_UTTERANCES
from streamsynth.testing.faults import fault_at
from streamsynth.testing.sine import sine

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLES_PER_CHARACTER = 1200
ONE_STEP_OF_S16 = 1 / 32768
LONG = "x" * 20_000
Settled = Callable[[], Awaitable[None]]


async def collect(chunks: Any) -> list[AudioChunk]:
    return [chunk async for chunk in chunks]


def joined(chunks: list[AudioChunk]) -> npt.NDArray[np.float32]:
    """The samples, checked to be contiguous and to end with the one final chunk."""
    position = 0
    for chunk in chunks:
        assert chunk.first_sample == position
        assert chunk.samples.dtype == np.float32
        position += len(chunk.samples)
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return np.concatenate([chunk.samples for chunk in chunks])


def assert_is_tone(samples: npt.NDArray[np.float32], characters: int, *, speed: float = 1.0) -> None:
    assert len(samples) == round(characters * SAMPLES_PER_CHARACTER / speed)
    assert np.abs(samples - sine(0, len(samples))).max(initial=0) <= ONE_STEP_OF_S16


async def refusal(work: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(StreamSynthError) as caught:
        await work
    return caught.value.code


async def test_speech_is_complete_to_the_sample(synth: StreamSynth, nothing_left: Settled) -> None:
    speech = synth.speak("Hello there.")
    assert_is_tone(joined(await collect(speech)), 12)
    assert speech.finish_reason == "stop"
    await nothing_left()


@pytest.mark.parametrize("cuts", [[], [1], [5, 6, 11], list(range(1, 12))])
async def test_any_split_of_the_text_gives_the_same_samples(synth: StreamSynth, cuts: list[int]) -> None:
    text = "Hello there."

    async def pieces() -> AsyncIterator[str]:
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            yield text[start:end]
            yield ""

    assert_is_tone(joined(await collect(synth.speak(pieces()))), 12)


async def test_audio_comes_before_the_text_has_ended(synth: StreamSynth) -> None:
    heard = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        yield "Hello there. Good"
        await heard.wait()
        yield "bye."

    total = 0
    async for chunk in synth.speak(pieces()):
        heard.set()
        total += len(chunk.samples)
    assert total == 21 * SAMPLES_PER_CHARACTER


@pytest.mark.parametrize("text", ["", " ", ".", "🙂"])
async def test_what_has_no_sound_is_an_empty_utterance(synth: StreamSynth, text: str) -> None:
    """S64: a terminal event with 0 samples, no error."""
    speech = synth.speak(text)
    chunks = await collect(speech)
    assert len(joined(chunks)) == 0
    assert chunks[0].sample_rate == 24_000


async def test_breaking_out_cancels_and_leaves_nothing(synth: StreamSynth, nothing_left: Settled) -> None:
    async for _ in synth.speak(LONG):
        break
    await nothing_left()
    assert_is_tone(joined(await collect(synth.speak("next"))), 4)


async def test_leaving_the_context_cancels_although_somebody_holds_the_iterator(
    synth: StreamSynth, nothing_left: Settled
) -> None:
    async with synth.speak(LONG) as speech:
        await anext(speech)
    await nothing_left()
    assert await collect(speech) == []


async def test_a_speech_that_was_never_begun_leaves_nothing(synth: StreamSynth, nothing_left: Settled) -> None:
    synth.speak("never heard")
    await nothing_left()


async def test_a_cancelled_step_of_the_iteration_loses_nothing(synth: StreamSynth) -> None:
    speech = synth.speak("{delay 20}Hello there.")
    chunks: list[AudioChunk] = []
    given_up = 0
    while not chunks or not chunks[-1].final:
        step = asyncio.ensure_future(anext(speech))
        try:
            chunks.append(await asyncio.wait_for(step, 0.003))
        except TimeoutError:
            given_up += 1
    assert given_up > 0
    assert_is_tone(joined(chunks), 12)


REFUSED: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"speed": 9}, ErrorCode.INVALID_VALUE),
    ({"speed": "fast"}, ErrorCode.INVALID_VALUE),
    ({"voice": "nobody"}, ErrorCode.VOICE_NOT_FOUND),
    ({"model": "nothing"}, ErrorCode.MODEL_NOT_FOUND),
    ({"seed": 2**63}, ErrorCode.INVALID_VALUE),
    ({"max_new_tokens": 0}, ErrorCode.INVALID_VALUE),
    ({"granularity": "word"}, ErrorCode.INVALID_VALUE),
    ({"colour": "red"}, ErrorCode.UNKNOWN_FIELD),
    ({"sample_rate": 8000}, ErrorCode.UNKNOWN_FIELD),
    ({"response_format": "mp3"}, ErrorCode.UNKNOWN_FIELD),
    ({"stream_audio": False}, ErrorCode.UNKNOWN_FIELD),
    ({"type": "x"}, ErrorCode.UNKNOWN_FIELD),
    ({"word_timestamps": True}, ErrorCode.UNSUPPORTED_FIELD),
    ({"ref_audio": "http://x/y"}, ErrorCode.UNSUPPORTED_REFERENCE),
]


@pytest.mark.parametrize(("settings", "code"), REFUSED)
async def test_refusals_have_the_same_codes_through_both_doors(
    synth: StreamSynth, nothing_left: Settled, settings: dict[str, Any], code: ErrorCode
) -> None:
    assert await refusal(collect(synth.speak("Hello.", **settings))) is code
    await nothing_left()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x" * 65_537, ErrorCode.TEXT_TOO_LONG),
        ("half of a pair: \ud800", ErrorCode.INVALID_VALUE),
        (b"bytes", ErrorCode.INVALID_VALUE),
    ],
)
async def test_a_text_that_cannot_be_is_refused(
    synth: StreamSynth, nothing_left: Settled, text: Any, code: ErrorCode
) -> None:
    assert await refusal(collect(synth.speak(text))) is code
    await nothing_left()


async def test_hints_that_the_model_cannot_use_are_said(synth: StreamSynth) -> None:
    speech = synth.speak("Hello.", language="en", instructions="cheerful")
    await collect(speech)
    assert speech.ignored == ("instructions", "language")


async def test_a_failure_half_way_raises_after_the_chunks_before_it(synth: StreamSynth, nothing_left: Settled) -> None:
    heard = 0
    with pytest.raises(StreamSynthError) as caught:
        async for chunk in synth.speak("{fail 2}Hello there."):
            heard += len(chunk.samples)
    assert caught.value.code is ErrorCode.ENGINE_FAILED
    assert heard == 2 * 1920
    await nothing_left()


async def test_what_the_text_raises_is_raised_to_the_listener(synth: StreamSynth, nothing_left: Settled) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "Hello there. "
        raise LookupError("no more words")

    with pytest.raises(LookupError, match="no more words"):
        await collect(synth.speak(pieces()))
    await nothing_left()


async def test_leaving_closes_the_text_too(synth: StreamSynth, nothing_left: Settled) -> None:
    """S32: who wraps an iterator closes it."""
    closed = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        try:
            yield "Hello there. More"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async for _ in synth.speak(pieces()):
        break
    await nothing_left()
    assert closed.is_set()


async def test_cancelling_the_listener_anywhere_leaves_nothing(synth: StreamSynth, nothing_left: Settled) -> None:
    async def listen() -> None:
        async with synth.speak("Hello there.") as speech:
            await collect(speech)

    wait = 0
    while await fault_at(wait, listen()):
        await nothing_left()
        wait += 1
    assert wait > 1
    await nothing_left()


async def speak_in(session: SpeechSession, text: str) -> Utterance:
    await session.send(text)
    return await session.flush()


async def test_utterances_of_a_session_come_in_the_order_of_their_texts(
    synth: StreamSynth, nothing_left: Settled
) -> None:
    async with synth.speech_session() as session:
        for text in ("abc", "", "defgh"):
            await speak_in(session, text)
        await session.finish()
        seen = [(each.index, len(joined(await collect(each))), each.status) async for each in session]
    assert seen == [(0, 3600, Status.COMPLETED), (1, 0, Status.COMPLETED), (2, 6000, Status.COMPLETED)]
    await nothing_left()


async def test_a_session_gives_an_utterance_before_its_flush(synth: StreamSynth) -> None:
    async with synth.speech_session() as session:
        await session.send("Hello there. How are you?")
        utterance = await anext(session)
        chunks = aiter(utterance)
        assert len((await anext(chunks)).samples) > 0
        assert await session.flush() is utterance


async def test_a_cancelled_utterance_ends_quietly_and_the_session_goes_on(
    synth: StreamSynth, nothing_left: Settled
) -> None:
    """S37, S44, S45: nothing of it comes after the cancel, and the next one can be sent at once."""
    async with synth.speech_session() as session:
        first = await speak_in(session, LONG)
        heard = 0
        async for _ in first:
            heard += 1
            if heard == 2:
                await session.cancel(first)
        assert (heard, first.status) == (2, Status.CANCELLED)
        assert_is_tone(joined(await collect(await speak_in(session, "next"))), 4)
    await nothing_left()


async def test_a_cancel_before_the_first_audio_counts(synth: StreamSynth) -> None:
    """S38, S39: in every state, and as often as you like."""
    async with synth.speech_session() as session:
        for _ in range(20):
            utterance = await speak_in(session, LONG)
            await session.cancel()
            assert await collect(utterance) == []
            assert utterance.status is Status.CANCELLED
        await session.cancel()
        assert_is_tone(joined(await collect(await speak_in(session, "next"))), 4)


async def test_a_cancel_drops_the_open_text_and_those_that_wait(synth: StreamSynth) -> None:
    async with synth.speech_session() as session:
        first = await speak_in(session, LONG)
        second = await speak_in(session, LONG)
        await session.send("not to be ")
        await session.cancel()
        answer = await speak_in(session, "next")
        assert_is_tone(joined(await collect(answer)), 4)
        assert (first.status, second.status) == (Status.CANCELLED, Status.CANCELLED)


async def test_a_cancel_of_what_waits_lets_the_speaking_one_speak(synth: StreamSynth) -> None:
    async with synth.speech_session() as session:
        first = await speak_in(session, "first")
        second = await speak_in(session, LONG)
        await session.cancel(second)
        assert_is_tone(joined(await collect(first)), 5)
        assert first.status is Status.COMPLETED


async def test_a_cancel_after_the_end_changes_nothing(synth: StreamSynth) -> None:
    """S47."""
    async with synth.speech_session() as session:
        utterance = await speak_in(session, "first")
        await collect(utterance)
        await session.cancel(utterance)
        assert (utterance.status, utterance.finish_reason) == (Status.COMPLETED, "stop")


async def test_breaking_out_of_an_utterance_cancels_that_one_only(synth: StreamSynth) -> None:
    async with synth.speech_session() as session:
        first, second = await speak_in(session, LONG), await speak_in(session, "second")
        async for _ in first:
            break
        assert_is_tone(joined(await collect(second)), 6)
        assert first.status is Status.CANCELLED


async def test_configure_applies_to_the_next_utterance_and_keeps_the_rest(synth: StreamSynth) -> None:
    async with synth.speech_session(speed=2) as session:
        first = await speak_in(session, "abcd")
        await session.configure(seed=7)
        second = await speak_in(session, "abcd")
        await session.configure(speed=None)
        third = await speak_in(session, "abcd")
        assert_is_tone(joined(await collect(first)), 4, speed=2)
        assert_is_tone(joined(await collect(second)), 4, speed=2)
        assert_is_tone(joined(await collect(third)), 4)


async def test_configure_waits_for_its_answer_behind_speech_that_nobody_reads(synth: StreamSynth) -> None:
    async with synth.speech_session() as session:
        await speak_in(session, LONG)
        async with asyncio.timeout(10):
            await session.configure(speed=2)


async def test_a_different_config_while_text_is_open_is_refused_and_the_text_survives(synth: StreamSynth) -> None:
    """S42, SP-5; an equal one is accepted."""
    async with synth.speech_session() as session:
        await session.send("abc")
        assert await refusal(session.configure(speed=2)) is ErrorCode.CONFIG_WHILE_OPEN
        await session.configure(speed=1.0)
        await session.send("d")
        assert_is_tone(joined(await collect(await session.flush())), 4)


async def test_empty_text_opens_nothing(synth: StreamSynth) -> None:
    """S66: it does not block a new config."""
    async with synth.speech_session() as session:
        await session.send("")
        await session.configure(speed=2)
        assert_is_tone(joined(await collect(await speak_in(session, "ab"))), 2, speed=2)


async def test_a_refused_config_changes_nothing(synth: StreamSynth) -> None:
    async with synth.speech_session(speed=2) as session:
        assert await refusal(session.configure(voice="nobody")) is ErrorCode.VOICE_NOT_FOUND
        await session.configure(seed=1)
        assert_is_tone(joined(await collect(await speak_in(session, "abcd"))), 4, speed=2)


async def test_a_failed_utterance_leaves_the_session_usable(synth: StreamSynth) -> None:
    """SP-10, S28."""
    async with synth.speech_session() as session:
        failing = await speak_in(session, "{fail 0}abc")
        assert await refusal(collect(failing)) is ErrorCode.ENGINE_FAILED
        assert failing.status is Status.FAILED
        assert failing.error is not None
        assert_is_tone(joined(await collect(await speak_in(session, "next"))), 4)


async def test_text_over_the_limit_is_refused_and_the_rest_is_spoken(synth: StreamSynth) -> None:
    async with synth.speech_session(max_new_tokens=1) as session:
        await session.send("x" * 65_000)
        assert await refusal(session.send("x" * 537)) is ErrorCode.TEXT_TOO_LONG
        await session.send("x" * 536)
        utterance = await session.flush()
        assert len(joined(await collect(utterance))) == 1920
        assert utterance.finish_reason == "length"


async def test_text_behind_the_cut_is_dropped_with_its_utterance(synth: StreamSynth, nothing_left: Settled) -> None:
    """S65: an utterance that a limit cut before its flush takes nothing of the next one with it."""
    async with synth.speech_session(max_new_tokens=1) as session:
        await session.send("The first sentence. And a second one, ")
        first = await anext(session)
        chunks = aiter(first)
        assert len((await anext(chunks)).samples) == 1920
        await session.send("which nobody hears. ")
        assert await session.flush() is first
        await collect(chunks)
        assert first.finish_reason == "length"
        assert len(joined(await collect(await speak_in(session, "The next one.")))) == 1920
    await nothing_left()


async def test_more_utterances_than_anybody_reads_are_refused(synth: StreamSynth, nothing_left: Settled) -> None:
    async with synth.speech_session() as session:
        for _ in range(MAX_UTTERANCES):
            await speak_in(session, "abcdefgh")
        assert await refusal(session.send("one more")) is ErrorCode.OVERLOADED
        await collect(await anext(session))
        await session.send("one more")
    await nothing_left()


async def test_closing_a_session_raises_in_who_still_reads(synth: StreamSynth) -> None:
    async with synth.speech_session() as session:
        utterance = await speak_in(session, LONG)
        chunks = aiter(utterance)
        await anext(chunks)
        reading = asyncio.create_task(collect(chunks))
        await asyncio.sleep(0)
    assert await refusal(reading) is ErrorCode.CANCELLED


async def test_cancelling_a_sender_anywhere_neither_loses_nor_repeats_text(
    synth: StreamSynth, nothing_left: Settled
) -> None:
    async with synth.speech_session() as session:
        wait, struck = 0, True
        while struck:
            struck = await fault_at(wait, session.send("ab"))
            wait += 1
        assert_is_tone(joined(await collect(await session.flush())), 2 * wait)
    await nothing_left()


async def test_cancelling_the_opening_anywhere_leaves_nothing(synth: StreamSynth, nothing_left: Settled) -> None:
    async def converse() -> None:
        async with synth.speech_session() as session:
            await session.configure(speed=2)
            await collect(await speak_in(session, "ab"))

    wait = 0
    while await fault_at(wait, converse()):
        await nothing_left()
        wait += 1
    await nothing_left()


async def test_misuse_is_said(synth: StreamSynth) -> None:
    session = synth.speech_session()
    with pytest.raises(RuntimeError, match="enter the speech session first"):
        await session.send("too early")
    async with session:
        utterance = await speak_in(session, "a")
        await collect(utterance)
        with pytest.raises(RuntimeError, match="iterated over once"):
            aiter(utterance)
        await session.finish()
        with pytest.raises(RuntimeError, match="is finished"):
            await session.send("too late")
    with pytest.raises(RuntimeError, match="entered once"):
        await session.open()


async def test_it_can_be_entered_only_while_it_is_not(synth: StreamSynth) -> None:
    """A second start would leave the first one's workers behind."""
    with pytest.raises(RuntimeError, match="entered already"):
        await synth.start()


async def test_it_must_be_entered() -> None:
    with pytest.raises(RuntimeError, match="enter it first"):
        StreamSynth("sine").speak("too early")


async def test_another_event_loop_is_refused_instead_of_hanging(synth: StreamSynth) -> None:
    async def use() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            synth.speak("elsewhere")
        with pytest.raises(RuntimeError, match="another event loop"):
            synth.video_session("elsewhere")

    await asyncio.to_thread(asyncio.run, use())
