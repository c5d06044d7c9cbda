"""The embedded autoregressive voice through its two workers: frames stream from the talker to the codec."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
from loudness import level_db

from streamsynth.config.plan import plan
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import SpeechFlow
from streamsynth.graph.flow import Status
from streamsynth.runtime import Runtime
from streamsynth.speech import AudioChunk, Granularity, SpeechRequest
from streamsynth.testing.recognition import Listener, compare

TEXT = "The quick brown fox jumps over the lazy dog."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[Runtime]:
    # However crowded the machine: what cannot be spoken in real time waits for its turn, and is not refused.
    waits = [f"{stage}.queue_timeout_s=300" for stage in ("talker", "codec")]
    started = Runtime(plan(["tiny-speech"], sets=waits))
    await started.start()
    yield started
    await started.stop()


pytestmark = pytest.mark.asyncio(loop_scope="module")


def speak(runtime: Runtime, *pieces: str, seed: int = 1, granularity: Granularity = Granularity.NONE) -> SpeechFlow:
    flow = runtime.open_speech("tiny-speech", SpeechRequest(voice="tiny", seed=seed, granularity=granularity))
    for piece in pieces:
        flow.send_text(piece)
    flow.finish_text()
    return flow


def joined(chunks: Sequence[AudioChunk]) -> npt.NDArray[np.float32]:
    return np.concatenate([chunk.samples for chunk in chunks])


async def test_what_is_heard_is_what_was_written(runtime: Runtime) -> None:
    sentences = [
        TEXT,
        "We walked along the river until the sun went down.",
        "Please close the window before you leave.",
    ]
    heard = []
    listener = await asyncio.to_thread(Listener)
    for number, sentence in enumerate(sentences):
        samples = joined([chunk async for chunk in speak(runtime, sentence, seed=number)])
        heard.append((sentence, await asyncio.to_thread(listener.hear, samples, 24_000)))
    assert compare(heard).rate <= 0.15, heard


async def test_both_stages_in_one_worker_sound_as_in_two(runtime: Runtime) -> None:
    sets = ["codec.shares_worker=true", "talker.queue_timeout_s=300"]
    shared = Runtime(plan(["tiny-speech"], sets=sets))
    await shared.start()
    try:
        assert list(shared.statistics().stages) == ["tiny-speech.talker_codec"]
        one = [chunk async for chunk in speak(shared, TEXT, seed=5)]
    finally:
        await shared.stop()
    two = [chunk async for chunk in speak(runtime, TEXT, seed=5)]
    assert one[-1].final
    assert joined(one).shape == joined(two).shape
    assert np.abs(joined(one) - joined(two)).max() < 1e-4


async def test_the_first_audio_is_small_audible_and_comes_before_the_speech_is_made(runtime: Runtime) -> None:
    """S16, S18, S22: frame by frame, never by the sentence; how many at first depends on the load."""
    flow = speak(runtime, TEXT)
    first = await flow.receive()
    assert 0 < len(first.samples) <= 8 * 960
    assert not first.final
    rest = [chunk async for chunk in flow]
    assert len(rest) > 5
    assert rest[-1].final
    audible = np.flatnonzero(np.abs(joined([first, *rest])) > 0.01)
    assert audible[0] <= 0.05 * 24_000


async def test_what_is_made_in_pieces_has_pauses_without_clicks_at_a_steady_level(runtime: Runtime) -> None:
    text = "We walked along the river. The sun went down, and it was cold. Then we went home."
    samples = joined([chunk async for chunk in speak(runtime, text, granularity=Granularity.CLAUSE)])
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    gaps = np.flatnonzero(np.diff(loud) > 0.3 * 24_000)
    pauses = np.diff(loud)[gaps] / 24_000
    assert [round(pause, 1) for pause in pauses] == pytest.approx([0.8, 0.4, 0.8], abs=0.11)
    for edge in (loud[0], *loud[gaps], *loud[gaps + 1], loud[-1]):
        assert np.abs(np.diff(samples[max(0, edge - 24) : edge + 24])).max() < 0.05
    levels = [level_db(part) for part in np.split(samples, loud[gaps + 1])]
    assert max(levels) - min(levels) < 4
    assert level_db(samples) == pytest.approx(-25.2, abs=1.5), "hibari's, within what short texts differ by"


async def test_a_limit_on_tokens_holds_with_the_pauses_and_is_said(runtime: Runtime) -> None:
    """S65: finish reason `length`; a token is a frame of 960 samples."""
    request = SpeechRequest(voice="tiny", seed=1, max_new_tokens=30)
    flow = runtime.open_speech("tiny-speech", request)
    flow.send_text("One. Two. Three. Four. Five.")
    flow.finish_text()
    samples = await collect(flow)
    outcome = await flow.outcome
    assert 20 * 960 < len(samples) <= 30 * 960
    assert outcome.finish_reason == "length"
    assert outcome.output_tokens <= 30


async def test_more_than_can_be_spoken_in_real_time_is_refused_and_what_was_taken_is_spoken(runtime: Runtime) -> None:
    """S21: who is told to come again knows when; nobody who was let in is left behind."""
    flows: list[SpeechFlow] = []
    refused: list[StreamSynthError] = []
    for seed in range(400):
        try:
            flows.append(speak(runtime, "Hello.", seed=seed))
        except StreamSynthError as error:
            refused.append(error)
    assert {error.code for error in refused} == {ErrorCode.OVERLOADED}
    assert all(error.retry_after_ms for error in refused)
    for flow in flows[3:]:
        flow.cancel()
    for flow in flows[:3]:
        assert len(await collect(flow)) > 3000
    for flow in flows:
        await flow.outcome
        await flow.idle()


async def test_aborts_at_random_points_give_everything_back(runtime: Runtime) -> None:
    """S25, S27: after the last of them every page and every stream of the codec is free."""
    random = np.random.default_rng(0)
    for seed in range(12):
        flow = speak(runtime, TEXT, seed=seed)
        for _ in range(int(random.integers(0, 5))):
            await flow.receive()
        flow.cancel()
        await flow.idle()
    async with asyncio.timeout(10):
        while not idle(runtime):
            await asyncio.sleep(0.05)


def idle(runtime: Runtime) -> bool:
    """By the last heartbeats nothing is held."""
    stages = runtime.statistics().stages
    talker, codec = (stages[f"tiny-speech.{name}"].beat for name in ("talker", "codec"))
    assert talker is not None
    assert codec is not None
    return (talker.live, codec.live, codec.counters["free_slots"]) == (0, 0, 64) and talker.counters["live"] == 0


async def test_the_same_seed_is_the_same_speech_beside_others_and_however_the_text_came(runtime: Runtime) -> None:
    alone = joined([chunk async for chunk in speak(runtime, TEXT, seed=5)])
    flows = [speak(runtime, *TEXT, seed=5), *(speak(runtime, TEXT, seed=seed) for seed in (6, 7))]
    together = await asyncio.gather(*(collect(flow) for flow in flows))
    assert len(together[0]) == len(alone)
    # Rows in a batch meet in matrix products, whose rounding depends on its size.
    np.testing.assert_allclose(together[0], alone, atol=1e-3)


async def collect(flow: SpeechFlow) -> npt.NDArray[np.float32]:
    return joined([chunk async for chunk in flow])


async def test_sentences_are_segments_with_their_texts(runtime: Runtime) -> None:
    flow = speak(runtime, "One apple. Two pears.", granularity=Granularity.SENTENCE)
    chunks = [chunk async for chunk in flow]
    assert [chunk.segment_text for chunk in chunks if chunk.segment_text] == ["One apple. ", "Two pears."]
    assert [chunk.segment for chunk in chunks if chunk.segment_final] == [0, 1]
    position = 0
    for chunk in chunks:
        assert chunk.first_sample == position
        position += len(chunk.samples)


async def test_nothing_to_say_is_an_empty_utterance(runtime: Runtime) -> None:
    """S64."""
    assert len(await collect(speak(runtime, "..."))) == 0


async def test_what_it_cannot_say_is_refused_by_name(runtime: Runtime) -> None:
    flow = speak(runtime, "Привет")
    with pytest.raises(StreamSynthError, match="Привет") as refused:
        await flow.receive()
    assert refused.value.code is ErrorCode.UNSUPPORTED_LANGUAGE


async def test_a_cancel_frees_the_pages_and_the_codec_s_stream(runtime: Runtime) -> None:
    """S25, S27."""
    flows = [speak(runtime, TEXT * 5, seed=seed) for seed in range(4)]
    for flow in flows:
        await flow.receive()
        flow.cancel()
    for flow in flows:
        assert (await flow.outcome).status is Status.CANCELLED
        await flow.idle()
    statistics = runtime.statistics()
    assert {stage.running for stage in statistics.stages.values()} == {0}


async def test_a_reader_that_does_not_read_stops_both_stages(runtime: Runtime) -> None:
    """S36: credit goes from the reader through the codec to the talker."""
    flow = speak(runtime, " ".join([TEXT] * 30))
    async with asyncio.timeout(60):
        while flow.lead().queued_cost < 10 * 24_000:
            await asyncio.sleep(0.05)
    made = steps(runtime)
    async with asyncio.timeout(30):
        while (later := steps(runtime)) != made:
            made = later
            await asyncio.sleep(2.5)  # Frames on their way between the stages, and two heartbeats.
    flow.cancel()
    await flow.idle()


def steps(runtime: Runtime) -> int:
    beat = runtime.statistics().stages["tiny-speech.talker"].beat
    return beat.counters["frames"] if beat else 0


@pytest.mark.parametrize("stage", ["tiny-speech.talker", "tiny-speech.codec"])
async def test_a_dead_stage_fails_the_utterance_and_comes_back(runtime: Runtime, stage: str) -> None:
    flow = speak(runtime, TEXT * 5)
    await flow.receive()
    pid = runtime.statistics().stages[stage].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(1):
        outcome = await flow.outcome
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.WORKER_DIED
    async with asyncio.timeout(60):
        while runtime.dead_stages():
            await asyncio.sleep(0.05)
    assert len(await collect(speak(runtime, "Back again."))) > 10_000


async def test_of_many_that_come_at_once_only_as_many_enter_as_can_be_spoken_in_real_time(runtime: Runtime) -> None:
    """S21: the talker's steps are shared, and what they cost is known from those of one request; the rest waits."""
    async for _ in speak(runtime, TEXT):
        pass
    stage = runtime.statistics().stages["tiny-speech.talker"]
    assert stage.beat is not None
    assert stage.beat.cost_each > 0
    flows = [speak(runtime, "Good morning.", seed=number) for number in range(60)]
    stage = runtime.statistics().stages["tiny-speech.talker"]
    assert 1 <= stage.running < 60
    assert stage.running + stage.queued == 60
    for flow in flows[4:]:
        flow.cancel()
    for flow in flows[:4]:
        assert [chunk.final async for chunk in flow][-1]
