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
    started = Runtime(plan(["tiny-speech"]))
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


async def test_the_first_audio_is_one_frame_and_comes_before_the_speech_is_made(runtime: Runtime) -> None:
    """S18, S22: frame by frame, never by the sentence."""
    flow = speak(runtime, TEXT)
    first = await flow.receive()
    assert len(first.samples) == 960
    assert not first.final
    assert [chunk.final async for chunk in flow][-1]


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
