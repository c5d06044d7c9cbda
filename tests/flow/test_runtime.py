"""Speech through real worker processes, seen from the runtime's own interface."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from streamsynth.config.plan import plan
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import SpeechFlow
from streamsynth.graph.chunk import Chunk, Unit
from streamsynth.graph.edge import EndOfEdge
from streamsynth.graph.flow import Flow, Node, Ports, Status, Wire
from streamsynth.runtime import Runtime
from streamsynth.speech import MAX_TEXT_CHARACTERS, AudioChunk, SpeechRequest
from streamsynth.testing.sine import sine
from streamsynth.workers.stage import StageRequest
from streamsynth.workers.wire import MAX_FRAME_BYTES

REQUEST = SpeechRequest(voice="sine")
SAMPLES_PER_CHARACTER = 1200


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    started = Runtime(plan(["sine"]))
    await started.start()
    yield started
    await started.stop()
    assert started.statistics().live_flows == 0


def speak(runtime: Runtime, *pieces: str) -> SpeechFlow:
    flow = runtime.open_speech("sine", REQUEST)
    for piece in pieces:
        flow.send_text(piece)
    flow.finish_text()
    return flow


def joined(chunks: Sequence[AudioChunk]) -> npt.NDArray[np.float32]:
    return np.concatenate([chunk.samples for chunk in chunks])


async def stage_counter(runtime: Runtime, name: str, expected: int) -> None:
    """Return when the engine's counter has this value in a heartbeat (the worker beats twice a second)."""
    async with asyncio.timeout(5):
        while True:
            beat = runtime.statistics().stages["sine.tone"].beat
            if beat is not None and beat.counters[name] == expected:
                return
            await asyncio.sleep(0.02)


async def test_chunks_are_contiguous_and_join_without_a_seam(runtime: Runtime) -> None:
    """S2, S15: what the chunks join to is the tone itself, in order, phase error 0."""
    flow = speak(runtime, "A tone of known length.")
    chunks = [chunk async for chunk in flow]
    position = 0
    for chunk in chunks:
        assert chunk.first_sample == position
        position += len(chunk.samples)
    assert position == 23 * SAMPLES_PER_CHARACTER
    np.testing.assert_array_equal(joined(chunks), sine(0, position))
    outcome = await flow.outcome
    assert (outcome.status, outcome.finish_reason, outcome.units) == (Status.COMPLETED, "stop", position)
    assert outcome.input_tokens == 23


async def test_any_split_of_the_text_gives_the_same_samples(runtime: Runtime) -> None:
    whole = joined([chunk async for chunk in speak(runtime, "Split me anywhere.")])
    trickled = joined([chunk async for chunk in speak(runtime, *"Split me anywhere.")])
    np.testing.assert_array_equal(whole, trickled)


async def test_audio_comes_while_text_is_still_arriving(runtime: Runtime) -> None:
    """S18: the first chunk leaves before generation ends."""
    flow = runtime.open_speech("sine", REQUEST)
    flow.send_text("early")
    assert (await flow.receive()).first_sample == 0
    flow.finish_text()
    assert [chunk.final async for chunk in flow][-1]
    with pytest.raises(EndOfEdge):
        await flow.receive()


@pytest.mark.parametrize("text", ["", " ", ".", "🙂"])
async def test_text_without_a_speakable_character_is_an_empty_utterance(runtime: Runtime, text: str) -> None:
    """S64."""
    flow = speak(runtime, text)
    assert len(joined([chunk async for chunk in flow])) == 0
    assert (await flow.outcome).status is Status.COMPLETED


async def test_a_reader_that_does_not_read_stops_its_own_worker(runtime: Runtime) -> None:
    """S36: the step counter freezes at the lead; another request runs; reading again resumes it."""
    stalled = speak(runtime, "x" * 1000)
    lead_samples = 10 * 24_000
    while stalled.lead().queued_cost < lead_samples:
        await asyncio.sleep(0.01)
    other = speak(runtime, "y" * 100)
    assert len(joined([chunk async for chunk in other])) == 100 * SAMPLES_PER_CHARACTER
    assert stalled.lead().peak_cost < lead_samples + 1920
    assert len(joined([chunk async for chunk in stalled])) == 1000 * SAMPLES_PER_CHARACTER


async def test_cancel_ends_the_flow_now_and_the_worker_within_a_step(runtime: Runtime) -> None:
    """S25, S44: valid in every state; what the worker still sent is dropped."""
    flow = speak(runtime, "x" * 60_000)
    await flow.receive()
    flow.cancel()
    with pytest.raises(StreamSynthError) as cancelled:
        await flow.receive()
    assert cancelled.value.code is ErrorCode.CANCELLED
    assert (await flow.outcome).status is Status.CANCELLED
    await flow.idle()
    await stage_counter(runtime, "live", 0)
    beat = runtime.statistics().stages["sine.tone"].beat
    assert beat is not None
    assert beat.steps_after_cancel == 0
    assert beat.memory_in_use == 0


async def test_cancel_before_the_first_chunk_and_before_any_text(runtime: Runtime) -> None:
    """S38."""
    silent = runtime.open_speech("sine", REQUEST)
    silent.cancel()
    silent.send_text("ignored")
    assert (await silent.outcome).status is Status.CANCELLED
    opened = runtime.open_speech("sine", REQUEST)
    await asyncio.sleep(0)
    opened.cancel()
    await opened.idle()
    assert (await opened.outcome).status is Status.CANCELLED


async def test_an_engine_failure_is_typed_and_comes_after_what_was_made(runtime: Runtime) -> None:
    flow = speak(runtime, "{fail 2}", "x" * 100)
    got = [await flow.receive(), await flow.receive()]
    with pytest.raises(StreamSynthError) as failed:
        await flow.receive()
    assert failed.value.code is ErrorCode.ENGINE_FAILED
    assert len(got) == 2
    assert (await flow.outcome).status is Status.FAILED


async def test_a_limit_on_tokens_is_said_in_the_finish_reason(runtime: Runtime) -> None:
    """S65: a cap by length ends with `length`."""
    flow = runtime.open_speech("sine", SpeechRequest(voice="sine", max_new_tokens=3))
    flow.send_text("x" * 500)
    flow.finish_text()
    assert len(joined([chunk async for chunk in flow])) == 3 * 1920
    assert (await flow.outcome).finish_reason == "length"


async def test_too_much_text_is_refused_and_the_rest_is_kept(runtime: Runtime) -> None:
    flow = runtime.open_speech("sine", REQUEST)
    flow.send_text("kept")
    with pytest.raises(StreamSynthError) as refused:
        flow.send_text("x" * MAX_TEXT_CHARACTERS)
    assert refused.value.code is ErrorCode.TEXT_TOO_LONG
    flow.finish_text()
    assert len(joined([chunk async for chunk in flow])) == 4 * SAMPLES_PER_CHARACTER


async def test_aborts_at_random_points_leave_nothing_behind(runtime: Runtime) -> None:
    """S27, S29, V21: whatever is cancelled whenever, every registry is empty afterwards."""
    random = np.random.default_rng(5)

    async def one(number: int) -> None:
        flow = speak(runtime, "x" * int(random.integers(1, 400)))
        async with asyncio.timeout(20):
            for _ in range(int(random.integers(0, 12))):
                try:
                    await flow.receive()
                except EndOfEdge:
                    break
        if number % 3:
            flow.cancel()
        else:
            async for _ in flow:
                pass
        await flow.outcome
        await flow.idle()

    for batch in range(6):
        await asyncio.gather(*(one(batch * 30 + number) for number in range(30)))
    statistics = runtime.statistics()
    assert (statistics.live_flows, statistics.stages["sine.tone"].running) == (0, 0)
    await stage_counter(runtime, "live", 0)


async def test_an_unknown_model_is_named_with_those_that_exist(runtime: Runtime) -> None:
    with pytest.raises(StreamSynthError, match="there are: sine") as unknown:
        runtime.open_speech("nobody", REQUEST)
    assert unknown.value.code is ErrorCode.MODEL_NOT_FOUND


async def test_more_requests_than_slots_wait_and_then_are_refused() -> None:
    """S54: a burst above capacity queues, then is refused with a time to try again; the rest is served."""
    runtime = Runtime(plan(["sine"], sets=["tone.max_num_seqs=2", "tone.max_queued=2"]))
    await runtime.start()
    try:
        flows = [speak(runtime, "x" * 50) for _ in range(2)]
        await asyncio.sleep(0)
        flows += [speak(runtime, "x" * 50) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StreamSynthError) as refused:
            speak(runtime, "one too many")
        assert refused.value.code is ErrorCode.OVERLOADED
        assert refused.value.retry_after_ms
        for flow in flows:
            assert len(joined([chunk async for chunk in flow])) == 50 * SAMPLES_PER_CHARACTER
    finally:
        await runtime.stop()


async def test_of_many_that_come_at_once_only_as_many_enter_as_can_be_made_in_real_time() -> None:
    """S21: the rest waits, and everybody inside is in time. A chunk of 80 ms takes at least 30 ms to make."""
    runtime = Runtime(plan(["sine"], sets=["tone.step_ms=30"]))
    await runtime.start()
    try:
        async for _ in speak(runtime, "so that the cost is known"):
            pass
        flows = [speak(runtime, "x" * 8) for _ in range(8)]
        stage = runtime.statistics().stages["sine.tone"]
        assert 1 <= stage.running <= 2
        assert stage.running + stage.queued == 8
        for flow in flows:
            assert len(joined([chunk async for chunk in flow])) == 8 * SAMPLES_PER_CHARACTER
    finally:
        await runtime.stop()


async def test_one_text_goes_to_two_voices_and_their_audio_meets_its_captions(runtime: Runtime) -> None:
    """A branch and a join in one flow: two requests in the worker, and a node that pairs both."""
    stage = runtime._stages["sine.tone"]
    slow, fast = (StageRequest(stage, 1, SpeechRequest(voice="sine", speed=speed).to_wire()) for speed in (1.0, 2.0))

    async def split(ports: Ports) -> None:
        async for piece in ports.inputs["text"]:
            await ports.broadcast(piece)

    async def caption(ports: Ports) -> None:
        async for chunk in ports.inputs["slow"]:
            twin = await ports.inputs["fast"].receive() if not chunk.first_unit else None
            await ports.broadcast((chunk, chunk.marks.get("segment_text"), twin))

    def wire(source: str, target: str) -> Wire:
        return Wire(source=source, target=target, capacity=1_000_000, cost=lambda item: getattr(item, "units", 1))

    flow = Flow(
        [Node("split", split), Node("slow", slow.run), Node("fast", fast.run), Node("caption", caption)],
        [
            *(wire("text", "split"), wire("split", "slow"), wire("split", "fast")),
            *(wire("slow", "caption"), wire("fast", "caption"), wire("caption", "captioned")),
        ],
    )
    flow.inputs["text"].send_nowait("both of us")
    flow.inputs["text"].close()
    made = [item async for item in flow.outputs["captioned"]]
    assert (await flow.outcome).status is Status.COMPLETED
    for request in (slow, fast):
        request.settle()
        await request.idle.wait()
    assert sum(chunk.units for chunk, _, _ in made) == 10 * SAMPLES_PER_CHARACTER
    assert [text for _, text, _ in made if text] == ["both of us"]
    assert made[0][2].first_unit == 0


async def test_what_cannot_be_passed_to_a_worker_fails_the_flow(runtime: Runtime) -> None:
    """One terminal event: the worker would wait for ever for a chunk that no frame can hold."""
    request = StageRequest(runtime._stages["sine.tone"], 1, REQUEST.to_wire())
    wires = [Wire(source="codes", target="decode", capacity=1), Wire(source="decode", target="audio", capacity=1)]
    flow = Flow([Node("decode", request.run)], wires)
    huge = np.zeros(MAX_FRAME_BYTES, np.uint8)
    flow.inputs["codes"].send_nowait(Chunk(huge, 0, len(huge), Unit.FRAME, 25))
    async with asyncio.timeout(5):
        end = await flow.outcome
    request.settle()
    assert end.status is Status.FAILED
    assert end.error is not None and end.error.code is ErrorCode.INTERNAL_ERROR
    await request.idle.wait()


async def test_an_engine_whose_rate_is_not_the_declared_one_is_an_error() -> None:
    """S9: the rate travels with the audio and is checked."""
    runtime = Runtime(plan(["sine"], sets=["tone.sample_rate=12000"]))
    await runtime.start()
    try:
        flow = speak(runtime, "low and slow")
        with pytest.raises(StreamSynthError, match="12000 Hz; the model declares 24000 Hz"):
            await flow.receive()
    finally:
        await runtime.stop()
