"""Worker processes: started whole or not at all, killed, restarted, never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamsynth.config.plan import plan
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Chunk
from streamsynth.graph.edge import open_edge
from streamsynth.graph.flow import Status
from streamsynth.runtime import Runtime
from streamsynth.speech import SpeechRequest
from streamsynth.workers import wire
from streamsynth.workers.launchers import ProcessLauncher, ThreadLauncher
from streamsynth.workers.stage import STALLED_PROGRESS_S
from streamsynth.workers.supervisor import Supervisor, WorkerSpec

REQUEST = SpeechRequest(voice="sine")


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    started = Runtime(plan(["sine"]))
    await started.start()
    yield started
    await started.stop()


def worker_pid(runtime: Runtime) -> int:
    pid = runtime.statistics().stages["sine.tone"].pid
    assert pid is not None
    return pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_ready(runtime: Runtime) -> None:
    async with asyncio.timeout(10):
        while runtime.dead_stages():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("polite", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_worker_ends_by_its_server_alone(runtime: Runtime, polite: signal.Signals) -> None:
    """T7.1, T7.6: service managers signal every process of a service, and draining needs the workers."""
    worker = worker_pid(runtime)
    flow = runtime.open_speech("sine", REQUEST)
    flow.send_text("x" * 1000)
    await flow.receive()
    os.kill(worker, polite)
    flow.finish_text()
    assert [chunk async for chunk in flow][-1].final
    assert worker_pid(runtime) == worker
    assert runtime.statistics().stages["sine.tone"].restarts == 0


async def test_a_dead_worker_fails_its_requests_at_once_and_is_restarted(runtime: Runtime) -> None:
    """T7.2, T7.11, V25: loaded. Each request gets one typed error; the next utterance works."""
    flows = [runtime.open_speech("sine", REQUEST) for _ in range(20)]
    for flow in flows:
        flow.send_text("x" * 60_000)
        await flow.receive()
    os.kill(worker_pid(runtime), signal.SIGKILL)
    async with asyncio.timeout(1):
        outcomes = await asyncio.gather(*(flow.outcome for flow in flows))
    assert {outcome.status for outcome in outcomes} == {Status.FAILED}
    assert {outcome.error.code for outcome in outcomes if outcome.error} == {ErrorCode.WORKER_DIED}
    assert "sine.tone" in runtime.dead_stages()
    with pytest.raises(StreamSynthError) as refused:
        runtime.open_speech("sine", REQUEST)
    assert refused.value.code is ErrorCode.WORKER_DIED
    assert refused.value.retry_after_ms
    await until_ready(runtime)
    again = runtime.open_speech("sine", REQUEST)
    again.send_text("back")
    again.finish_text()
    assert [chunk async for chunk in again][-1].final
    await again.idle()
    assert runtime.statistics().stages["sine.tone"].running == 0


async def test_a_runtime_that_was_stopped_can_be_started_again(runtime: Runtime) -> None:
    """Its workers are kept alive as before."""
    await runtime.stop()
    await runtime.start()
    os.kill(worker_pid(runtime), signal.SIGKILL)
    async with asyncio.timeout(5):
        while not runtime.dead_stages():
            await asyncio.sleep(0.01)
    await until_ready(runtime)


async def test_an_idle_worker_that_dies_is_restarted(runtime: Runtime) -> None:
    first = worker_pid(runtime)
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(5):
        while not runtime.dead_stages():
            await asyncio.sleep(0.01)
    await until_ready(runtime)
    assert worker_pid(runtime) != first
    assert not is_running(first)


async def test_a_worker_without_heartbeat_is_killed_and_restarted() -> None:
    """Heartbeats come from the step loop: a worker that is alive but does not step is dead."""
    runtime = Runtime(plan(["sine"], sets=["tone.heartbeat_timeout_s=1.5"]))
    await runtime.start()
    try:
        frozen = worker_pid(runtime)
        os.kill(frozen, signal.SIGSTOP)
        async with asyncio.timeout(8):
            while not runtime.dead_stages():
                await asyncio.sleep(0.02)
        await until_ready(runtime)
        assert not is_running(frozen)
    finally:
        await runtime.stop()


async def test_a_request_that_makes_nothing_ends_as_stalled_and_the_others_go_on() -> None:
    """S55."""
    runtime = Runtime(plan(["sine"], sets=["tone.stall_timeout_s=1"]))
    await runtime.start()
    try:
        silent, other = (runtime.open_speech("sine", REQUEST) for _ in range(2))
        silent.send_text("{stall 1}" + "x" * 100)
        other.send_text("y" * 100)
        silent.finish_text()
        other.finish_text()
        assert [chunk async for chunk in other][-1].final
        outcome = await silent.outcome
        assert outcome.error is not None
        assert outcome.error.code is ErrorCode.STALLED_ENGINE
        assert runtime.dead_stages() == {}
    finally:
        await runtime.stop()


async def test_a_request_that_makes_nothing_keeps_nobody_out(runtime: Runtime) -> None:
    """S55: late by its own fault, it is no sign of overload, though its worker is not ready."""
    silent = runtime.open_speech("sine", REQUEST)
    silent.send_text("{stall 1}" + "x" * 100)
    silent.finish_text()
    await silent.receive()
    async with asyncio.timeout(STALLED_PROGRESS_S + 3):
        while not runtime.dead_stages():
            await asyncio.sleep(0.05)
    async with asyncio.timeout(1):
        other = runtime.open_speech("sine", REQUEST)
        other.send_text("y" * 100)
        other.finish_text()
        assert [chunk async for chunk in other][-1].final
    silent.cancel()
    await silent.idle()


async def test_a_failed_start_names_the_cause_and_leaves_nothing_running() -> None:
    """V24: all or nothing."""
    supervisor = Supervisor(
        WorkerSpec(stage="bad", engine="streamsynth.testing.sine:SineEngine", options={"no_such_option": 1}),
        ProcessLauncher(),
    )
    before = children()
    with pytest.raises(StreamSynthError, match="no_such_option") as failed:
        await supervisor.start()
    assert failed.value.code is ErrorCode.START_FAILED
    assert children() == before


async def test_a_start_that_takes_too_long_is_given_up() -> None:
    supervisor = Supervisor(
        WorkerSpec(stage="slow", engine="streamsynth.testing.sine:SineEngine", options={}, start_timeout_s=0.001),
        ProcessLauncher(),
    )
    before = children()
    with pytest.raises(StreamSynthError, match=r"0\.001 s"):
        await supervisor.start()
    assert children() == before


async def test_a_runtime_that_cannot_start_all_stages_starts_none() -> None:
    runtime = Runtime(plan(["sine", "hibari"]))
    runtime._stages["hibari.voice"].supervisor.spec = WorkerSpec(
        stage="hibari.voice", engine="nowhere:Engine", options={}
    )
    before = children()
    with pytest.raises(StreamSynthError, match="nowhere"):
        await runtime.start()
    assert children() == before


async def test_stopping_ends_the_worker_process(runtime: Runtime) -> None:
    pid = worker_pid(runtime)
    await runtime.stop()
    assert not is_running(pid)


async def test_replies_of_another_generation_are_dropped_and_counted() -> None:
    """V22, V23: a reply is matched by its whole address, never by order."""
    supervisor = Supervisor(
        WorkerSpec(stage="tone", engine="streamsynth.testing.sine:SineEngine", options={}), ThreadLauncher()
    )
    await supervisor.start()
    try:
        send, receive = open_edge(100_000, cost=lambda chunk: chunk.units)
        connection = supervisor.connection
        request = connection.open(session=1, generation=2, request=REQUEST.to_wire(), output=send)
        late = wire.Output(
            wire.Address(1, 1, request.address.request),
            0,
            1,
            24_000,
            wire.Array("<f4", (1,), b"abcd", nbytes=4),
            {},
            False,
        )
        frame = wire.encode(late)
        connection.get_buffer(-1)[: len(frame)] = frame
        connection.buffer_updated(len(frame))
        assert connection.stale_replies == 1
        request.push("hi")
        request.finish()
        chunk: Chunk = await receive.receive()
        assert chunk.first_unit == 0
        await request.ended
    finally:
        await supervisor.stop()


SERVER = """
import asyncio, sys
from streamsynth.config.plan import plan
from streamsynth.runtime import Runtime
from streamsynth.speech import SpeechRequest

async def main():
    runtime = Runtime(plan(["sine"]))
    await runtime.start()
    flow = runtime.open_speech("sine", SpeechRequest(voice="sine"))
    flow.send_text("x" * 60000)
    await flow.receive()
    sys.stdout.write(f"{runtime.statistics().stages['sine.tone'].pid}\\n")
    sys.stdout.flush()
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_workers_exit_when_the_server_is_killed_and_no_memory_is_left() -> None:
    """T7.10: SIGKILL of the parent, while a request is running."""
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        worker = int(server.stdout.readline())
        assert is_running(worker)
        server.kill()
        server.wait()
        deadline = 200
        while is_running(worker) and deadline:
            deadline -= 1
            _pause()
    assert not is_running(worker)
    assert set(os.listdir("/dev/shm")) == before


def _pause() -> None:
    """A tick of waiting for another process, which nothing here could be woken by."""
    subprocess.run(["sleep", "0.02"], check=True)


def children() -> set[int]:
    """Process ids of this process's living children."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in own if is_running(int(pid))}
