"""The embedded voice as an engine: what comes out, in which segments, when, and how it is stopped."""

from __future__ import annotations

import functools
import threading

import hibari
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speaking import audio, drain, open_stream, speak, voice

from streamsynth.engine.stream import Interrupted
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.hibari.engine import HibariEngine
from streamsynth.models.hibari.network import Abort
from streamsynth.models.hibari.pipeline import HIBARI, SAMPLE_RATE, TOKEN_SAMPLES
from streamsynth.speech import Granularity
from streamsynth.text.cutter import MAX_UNIT_CHARACTERS

TEXT = (
    "When the long winter was over, and the snow had melted at last, the people came out of their houses, one by one. "
    'Nobody said a word! Dr. Smith was first; then came the others. "Is it 98.6 degrees?" asked Ann. Yes.'
)
SENTENCES = [
    "When the long winter was over, and the snow had melted at last, the people came out of their houses, one by one. ",
    "Nobody said a word! ",
    "Dr. Smith was first; then came the others. ",
    '"Is it 98.6 degrees?" asked Ann. ',
    "Yes.",
]


@functools.cache
def package() -> hibari.Hibari:
    return hibari.Hibari()


def plain_samples(text: str, speed: float = 1.0) -> int:
    """How many samples the package itself makes of a text."""
    return len(package()(text, speed=speed, seed=0))


@pytest.mark.parametrize("granularity", list(Granularity))
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_split_of_the_text_in_time_gives_the_same_samples(granularity: Granularity, data: st.DataObject) -> None:
    bounds = sorted(data.draw(st.lists(st.integers(0, len(TEXT)), max_size=10)))
    pieces = [TEXT[start:end] for start, end in zip([0, *bounds], [*bounds, len(TEXT)], strict=True)]
    once, split = speak(TEXT, granularity=granularity), speak(pieces, granularity=granularity)
    np.testing.assert_array_equal(audio(once), audio(split))
    assert [(e.segment, e.segment_text) for e in once if e.segment_text is not None] == [
        (e.segment, e.segment_text) for e in split if e.segment_text is not None
    ]


def test_one_character_at_a_time_gives_the_samples_of_the_whole() -> None:
    """S59, S60, S62."""
    for granularity in Granularity:
        once, trickled = speak(TEXT, granularity=granularity), speak(iter(TEXT), granularity=granularity)
        np.testing.assert_array_equal(audio(once), audio(trickled))


def test_other_requests_do_not_change_the_samples() -> None:
    alone = audio(speak(TEXT, granularity=Granularity.SENTENCE))
    streams = [open_stream(seed=seed, granularity=Granularity.SENTENCE) for seed in (1, 2, 1)]
    for stream in streams:
        stream.push(TEXT)
        stream.finish()
    made: list[list[np.ndarray]] = [[] for _ in streams]
    running = set(range(len(streams)))
    while running:
        for number in sorted(running):
            emission = streams[number].step()
            assert emission is not None
            made[number].append(emission.media)
            if emission.final:
                running.discard(number)
    first, other, again = map(np.concatenate, made)
    np.testing.assert_array_equal(first, alone)
    np.testing.assert_array_equal(again, alone)
    assert len(other) == len(alone)
    assert not np.array_equal(other, alone)


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1])
def test_a_seed_is_any_64_bit_integer_and_repeats_the_samples(seed: int) -> None:
    first, second = (audio(speak("Hello there.", seed=seed)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, audio(speak("Hello there.", seed=seed ^ 1)))


def test_without_a_seed_each_utterance_has_its_own_noise() -> None:
    first, second = (audio(speak("Hello there.", seed=None)) for _ in range(2))
    assert len(first) == len(second)
    assert not np.array_equal(first, second)


def test_pieces_of_an_utterance_do_not_share_their_noise() -> None:
    made = speak("Hello there.\nHello there.", granularity=Granularity.SENTENCE)
    parts = [audio(e for e in made if e.segment == segment) for segment in (0, 1)]
    assert len(parts[0]) == len(parts[1])
    assert not np.array_equal(*parts)


def test_without_containers_everything_is_one_segment_and_waits_for_the_end_of_the_text() -> None:
    stream = open_stream()
    stream.push(TEXT)
    assert stream.wake_at() is None
    assert stream.step() is None
    stream.finish()
    made = drain(stream)
    assert {e.segment for e in made} == {0}
    assert [e.segment_text for e in made] == [TEXT] + [None] * (len(made) - 1)
    assert [e.segment_final for e in made] == [e.final for e in made] == [False] * (len(made) - 1) + [True]
    assert made[-1].finish_reason == "stop"


def test_each_sentence_is_a_segment_and_speaks_as_soon_as_it_is_certain() -> None:
    stream = open_stream(granularity=Granularity.SENTENCE)
    stream.push("Hello there.")
    assert stream.wake_at() is None
    stream.push(" H")
    made = drain(stream)
    assert made[0].segment_text == "Hello there. "
    assert [e.segment_final for e in made] == [False] * (len(made) - 1) + [True]
    assert not any(e.final for e in made)
    assert stream.wake_at() is None
    stream.push("ow are you?")
    stream.finish()
    rest = drain(stream)
    assert rest[0].segment_text == "How are you?"
    assert {e.segment for e in rest} == {1}
    assert rest[-1].segment_final
    assert rest[-1].final


@pytest.mark.parametrize("pieces", [[TEXT], list(TEXT)])
def test_segment_texts_are_the_sentences(pieces: list[str]) -> None:
    made = speak(pieces, granularity=Granularity.SENTENCE)
    assert [e.segment_text for e in made if e.segment_text is not None] == SENTENCES
    assert [e.segment for e in made if e.segment_final] == list(range(len(SENTENCES)))


def test_segment_texts_are_the_clauses() -> None:
    made = speak("Good morning, my friends: we are here; at last, we are.", granularity=Granularity.CLAUSE)
    texts = [e.segment_text for e in made if e.segment_text is not None]
    assert texts == ["Good morning, ", "my friends: ", "we are here; ", "at last, we are."]


@pytest.mark.parametrize("granularity", list(Granularity))
@pytest.mark.parametrize("text", ["", " ", ".", "🙂", "...\n"])
def test_text_without_sound_is_an_empty_utterance(text: str, granularity: Granularity) -> None:
    """S64."""
    made = speak(text, granularity=granularity)
    assert [(len(e.media), e.final, e.segment_text, e.finish_reason) for e in made] == [(0, True, None, "stop")]


def test_silent_text_behind_the_last_sentence_does_not_delay_its_end() -> None:
    stream = open_stream(granularity=Granularity.SENTENCE)
    stream.push("Hello there.\n 🙂 ")
    stream.finish()
    made = drain(stream)
    assert made[-1].final
    assert len(made[-1].media)


def test_a_step_reads_one_unit_of_text_at_most() -> None:
    """S55: the worker goes on to others, and its heartbeat, however much of a text has no sound."""
    stream = open_stream()
    stream.push("/" * (5 * MAX_UNIT_CHARACTERS))
    stream.finish()
    silent = 0
    while (emission := stream.step()) is None:
        silent += 1
    assert emission.final
    assert silent >= 4


@pytest.mark.parametrize("granularity", list(Granularity))
def test_much_silent_text_behind_the_last_sentence_changes_nothing_that_is_heard(granularity: Granularity) -> None:
    plain, trailing = (speak("Hello there." + rest, granularity=granularity) for rest in ("", "\n" + "/" * 2000))
    np.testing.assert_array_equal(audio(plain), audio(trailing))
    assert [e.final for e in trailing] == [False] * (len(trailing) - 1) + [True]
    assert {e.segment for e in trailing} == {0}


def test_an_end_that_comes_late_is_an_empty_emission() -> None:
    stream = open_stream(granularity=Granularity.SENTENCE)
    stream.push("Hello there.\n")
    assert drain(stream)[-1].segment_final
    stream.finish()
    made = drain(stream)
    assert [(len(e.media), e.final, e.segment) for e in made] == [(0, True, 0)]


def test_speech_that_it_cannot_say_is_refused_before_any_sound_of_it() -> None:
    """S65, S68."""
    stream = open_stream()
    stream.push("This is fine. Это нет.")
    stream.finish()
    with pytest.raises(StreamSynthError, match="'Это' in Cyrillic") as raised:
        stream.step()
    assert raised.value.code is ErrorCode.UNSUPPORTED_LANGUAGE


def test_in_sentences_what_came_before_the_refused_one_is_spoken() -> None:
    stream = open_stream(granularity=Granularity.SENTENCE)
    stream.push("This is fine. Это нет.")
    stream.finish()
    made = []
    with pytest.raises(StreamSynthError, match="Cyrillic"):
        while True:
            made.append(stream.step())
    assert made[-1] is not None
    assert made[-1].segment_final
    assert not made[-1].final


@pytest.mark.parametrize("text", [TEXT, "Hello.", "Fine weather. It is over. She sells shells. Hold on!"])
def test_it_starts_at_once(text: str) -> None:
    """Leading silence is at most 50 ms."""
    samples = audio(speak(text))
    assert np.flatnonzero(np.abs(samples) > 0.003)[0] < 0.05 * SAMPLE_RATE


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "Yes.",
        "Hello there.",
        "It was cold and grey. Nobody seemed to mind it! Did they? No.",
        "Edward tried to return her kindness as it deserved, but before such witnesses he dared not say half of it.",
        "The committee will meet on Tuesday, January 14th, at 7:30 p.m. Please be on time.",
    ],
)
@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_it_lasts_as_long_as_the_package_itself_within_five_percent(text: str, speed: float) -> None:
    assert len(audio(speak(text, speed=speed))) == pytest.approx(plain_samples(text, speed), rel=0.05)


def test_joins_do_not_click() -> None:
    """S1, S3, S13: at every edge of a silence the samples are as good as silent."""
    samples = audio(speak(TEXT, granularity=Granularity.CLAUSE))
    silent = samples == 0
    edges = np.flatnonzero(silent[1:] != silent[:-1])
    assert len(edges) > 10
    assert np.abs(np.diff(samples))[edges].max() < 1e-3
    assert np.abs(samples).max() < 1


def test_windows_are_whole_frames_and_the_first_is_short() -> None:
    """S22: a sentence leaves in pieces."""
    made = speak(TEXT)
    assert all(len(e.media) % TOKEN_SAMPLES == 0 and e.media.dtype == np.float32 for e in made)
    assert len(made[0].media) == voice().first_window_frames * TOKEN_SAMPLES


def test_a_cap_on_tokens_cuts_the_audio_to_the_sample() -> None:
    """S65."""
    full = speak(TEXT)
    tokens = len(audio(full)) // TOKEN_SAMPLES
    for cap in (1, 50, tokens - 1):
        made = speak(TEXT, max_new_tokens=cap)
        assert len(audio(made)) == cap * TOKEN_SAMPLES
        assert made[-1].final
        assert made[-1].segment_final
        assert made[-1].finish_reason == "length"
    exact = speak(TEXT, max_new_tokens=tokens)
    assert exact[-1].finish_reason == "stop"
    np.testing.assert_array_equal(audio(exact), audio(full))


def test_a_sentence_longer_than_the_limit_is_spoken_in_pieces_to_its_end() -> None:
    engine = HibariEngine(max_phonemes=40)
    before = engine.counters()["pieces"]
    stream = engine.open({**_REQUEST, "granularity": "sentence"})
    stream.push(SENTENCES[0])
    stream.finish()
    made = drain(stream)
    assert engine.counters()["pieces"] - before >= 3
    assert {e.segment for e in made} == {0}
    assert len(audio(made)) == pytest.approx(plain_samples(SENTENCES[0]), rel=0.2)


_REQUEST = {
    "voice": "heart",
    "speed": 1.0,
    "seed": 1,
    "max_new_tokens": None,
    "granularity": "none",
    "options": {},
}


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"voice": "emma"}, ErrorCode.VOICE_NOT_FOUND, "voice"),
        ({"speed": 0.49}, ErrorCode.INVALID_VALUE, "speed"),
        ({"speed": 2.01}, ErrorCode.INVALID_VALUE, "speed"),
        ({"speed": float("nan")}, ErrorCode.INVALID_VALUE, "speed"),
        ({"max_new_tokens": 0}, ErrorCode.INVALID_VALUE, "max_new_tokens"),
        ({"options": {"pitch": 2}}, ErrorCode.UNSUPPORTED_FIELD, "pitch"),
    ],
)
def test_a_request_it_cannot_serve_is_refused_by_name(change: dict[str, object], code: ErrorCode, param: str) -> None:
    with pytest.raises(StreamSynthError) as raised:
        voice().open({**_REQUEST, **change})
    assert raised.value.code is code
    assert raised.value.param == param


def test_an_interrupt_ends_the_step_in_flight_and_other_streams_go_on() -> None:
    """S25, S29."""
    long = ("a " * 190).strip() + "."
    stream = open_stream()
    stream.push(long)
    stream.finish()
    other = open_stream()
    other.push("Hello there.")
    other.finish()
    interrupted = voice().counters()["interrupted"]
    thread = threading.Thread(target=stream.interrupt)
    thread.start()
    with pytest.raises(Interrupted):
        while True:
            stream.step()
            thread.join()
    thread.join()
    assert voice().counters()["interrupted"] == interrupted + 1
    stream.close()
    np.testing.assert_array_equal(audio(drain(other)), audio(speak("Hello there.")))


def test_an_interrupt_that_came_early_still_counts() -> None:
    stream = open_stream()
    stream.interrupt()
    stream.push("Hello there.")
    stream.finish()
    with pytest.raises(Interrupted):
        stream.step()


def interrupted_run(begin: threading.Event, abort: Abort) -> BaseException | None:
    """What was being handled when the network gave up: its own failure if that was within a run."""
    with pytest.raises(Interrupted) as raised:
        begin.set()
        voice().network.run("ɐ " * 190, 0.5, abort)
    return raised.value.__context__


def test_the_network_gives_up_while_it_runs() -> None:
    """S25: a cancel does not wait for the piece in flight."""
    for _ in range(20):
        begin, abort = threading.Event(), Abort()

        def interrupt(begin: threading.Event = begin, abort: Abort = abort) -> None:
            begin.wait()
            abort.set()

        thread = threading.Thread(target=interrupt)
        thread.start()
        within = interrupted_run(begin, abort)
        thread.join()
        if within is not None:
            return
    pytest.fail("every interrupt came before its run")


def test_closed_streams_leave_nothing_behind() -> None:
    """S27."""
    live = voice().counters()["live"]
    for number in range(20):
        stream = open_stream(granularity=Granularity.SENTENCE)
        stream.push("Hello there. How are you?")
        for _ in range(number % 3):
            stream.step()
        stream.close()
    assert voice().counters()["live"] == live


def test_the_declaration_says_what_the_engine_does() -> None:
    traits = HIBARI.speech
    assert [voice.id for voice in traits.voices] == [traits.default_voice] == ["heart"]
    assert traits.speed == (0.5, 2.0)
    assert (traits.sample_rate, traits.token_samples) == (SAMPLE_RATE, TOKEN_SAMPLES)
    (stage,) = HIBARI.stages
    HibariEngine(**stage.options).close()
