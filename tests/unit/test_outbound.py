"""The one writer of a socket, before a transport that does what each test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from streamsynth.realtime.frame_queue import Frame, audio_frame, text_frame
from streamsynth.realtime.messages import SessionPong
from streamsynth.realtime.outbound import Outbound
from streamsynth.testing.fake_clock import settle


class ScriptedTransport:
    """Takes `room` frames at once and holds the next ones until `read`."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.written: list[object] = []
        self.held_bytes = 0
        self.kernel_took = 0
        self.aborted = False
        self.lost = False
        self.waiting: list[asyncio.Future[None]] = []

    def _wrote(self, what: object, size: int) -> None:
        if self.lost:
            raise ConnectionResetError("lost")
        self.written.append(what)
        self.room -= 1
        if self.room < 0:
            self.held_bytes += size

    def write(self, frame: Frame) -> None:
        self._wrote(frame, len(frame.payload))

    def write_ping(self) -> None:
        self._wrote("ping", 2)

    def write_pong(self, payload: bytes) -> None:
        self._wrote(("pong", payload), 2)

    def write_close(self, code: int, reason: str) -> None:
        self._wrote(("close", code, reason), 4)

    async def drained(self) -> None:
        if self.held_bytes:
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]

    @property
    def buffered_bytes(self) -> int:
        return self.held_bytes

    @property
    def taken_bytes(self) -> int:
        return self.kernel_took - self.held_bytes

    def read(self, room: int = 0) -> None:
        """The peer reads everything, and `room` more frames when they come."""
        self.held_bytes, self.room = 0, room
        self._wake()

    def abort(self) -> None:
        self.aborted = True
        self.lose()

    def lose(self) -> None:
        self.lost = True
        self.held_bytes = 0
        self._wake()

    def _wake(self) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
        self.waiting.clear()


@dataclass
class ManualTimer:
    due_s: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class ManualTimers:
    now_s: float = 0.0
    timers: list[ManualTimer] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], None], /) -> ManualTimer:
        self.timers.append(ManualTimer(self.now_s + delay, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.live if timer.due_s <= end_s]:
            timer = min(due, key=lambda timer: timer.due_s)
            self.timers.remove(timer)
            self.now_s = timer.due_s
            timer.callback()
        self.now_s = end_s

    @property
    def live(self) -> list[ManualTimer]:
        return [timer for timer in self.timers if not timer.cancelled]


class Writing:
    """An Outbound over a queue, running."""

    def __init__(self, transport: ScriptedTransport) -> None:
        self.transport = transport
        self.timers = ManualTimers()
        self.queue: deque[Frame] = deque()
        self.sent = 0
        self.stalls = 0
        self.outbound = Outbound(
            transport,
            take=lambda: self.queue.popleft() if self.queue else None,
            sent=self._count_sent,
            stalled=self._count_stall,
            write_stall_s=30,
            close_wait_s=2,
            timers=self.timers,
        )
        self.task = asyncio.create_task(self.outbound.run())

    def _count_sent(self) -> None:
        self.sent += 1

    def _count_stall(self) -> None:
        self.stalls += 1

    async def put(self, *frames: Frame) -> None:
        self.queue.extend(frames)
        self.outbound.nudge()
        await settle()


def audio(samples: int = 480) -> Frame:
    return audio_frame(bytes(2 * samples), utterance=0, samples=samples, sample_rate=24_000)


PONG = text_frame(SessionPong())


async def test_frames_are_written_in_order_as_they_come() -> None:
    writing = Writing(ScriptedTransport())
    frames = [audio(), PONG, audio()]
    await writing.put(*frames[:2])
    await writing.put(frames[2])
    assert writing.transport.written == frames
    assert writing.sent == 3
    writing.outbound.abandon()
    await writing.task


async def test_without_room_nothing_more_is_taken() -> None:
    """S36: what is not taken stays where a cancel can purge it."""
    writing = Writing(ScriptedTransport(room=1))
    await writing.put(*[audio() for _ in range(10)])
    assert len(writing.transport.written) == 2
    assert len(writing.queue) == 8
    writing.queue.clear()
    writing.transport.read(room=5)
    await writing.put(PONG)
    assert writing.transport.written[2:] == [PONG]
    writing.outbound.abandon()
    await writing.task


async def test_others_run_between_frames_also_when_the_transport_takes_all() -> None:
    """S20: a cancel that has arrived is read before the rest of a long queue is gone."""
    writing = Writing(ScriptedTransport())
    writing.queue.extend(audio() for _ in range(1000))
    writing.outbound.nudge()
    await settle()
    assert len(writing.queue) > 900
    writing.outbound.abandon()
    await writing.task


async def test_pings_go_before_queued_frames_and_only_the_last_pong_is_sent() -> None:
    """A client that pings without reading cannot fill the memory."""
    writing = Writing(ScriptedTransport(room=0))
    await writing.put(audio(), audio())
    for number in range(1000):
        writing.outbound.pong(b"%d" % number)
    writing.outbound.ping()
    writing.transport.read(room=10)
    await settle()
    assert writing.transport.written[1:3] == [("pong", b"999"), "ping"]
    assert len(writing.transport.written) == 4
    writing.outbound.abandon()
    await writing.task


async def test_the_end_writes_the_last_word_and_the_close_frame_and_nothing_after() -> None:
    writing = Writing(ScriptedTransport())
    writing.queue.append(audio())
    writing.outbound.end(4000, "idle_timeout: x", PONG)
    await writing.put(audio())
    await writing.task
    assert writing.transport.written == [PONG, ("close", 4000, "idle_timeout: x")]
    writing.outbound.end(1011, "again")
    assert len(writing.transport.written) == 2


async def test_the_end_waits_for_nothing_and_aborts_what_does_not_drain() -> None:
    """The close frame is queued behind what the peer does not read, and the transport is aborted 2 s later."""
    writing = Writing(ScriptedTransport(room=0))
    await writing.put(audio(), audio())
    writing.outbound.end(4002, "stalled_reader")
    assert writing.transport.written[-1] == ("close", 4002, "stalled_reader")
    await settle()
    assert not writing.task.done()
    writing.timers.advance(1.9)
    assert not writing.transport.aborted
    writing.timers.advance(0.2)
    assert writing.transport.aborted
    await writing.task
    assert len(writing.queue) == 1


async def test_a_peer_that_reads_the_close_frame_in_time_is_not_aborted() -> None:
    writing = Writing(ScriptedTransport(room=0))
    await writing.put(audio())
    writing.outbound.end(1000, "")
    writing.transport.read()
    await writing.task
    writing.outbound.release()
    writing.timers.advance(10)
    assert not writing.transport.aborted


@pytest.mark.parametrize("reason", ["é" * 100, "x" * 200, "🙂" * 40])
async def test_a_reason_fits_into_a_close_frame(reason: str) -> None:
    writing = Writing(ScriptedTransport())
    writing.outbound.end(1000, reason)
    await writing.task
    kind, _, sent = writing.transport.written[0]  # type: ignore[misc]  # what write_close recorded
    assert kind == "close"
    assert 119 < len(sent.encode()) <= 123
    assert reason.startswith(sent)


async def test_thirty_seconds_without_a_byte_are_a_stall() -> None:
    writing = Writing(ScriptedTransport(room=0))
    await writing.put(audio())
    writing.timers.advance(29)
    assert writing.stalls == 0
    writing.timers.advance(1)
    assert writing.stalls == 1
    writing.outbound.end(4002, "stalled_reader")
    writing.timers.advance(2)
    await writing.task
    assert writing.timers.live == []


@pytest.mark.parametrize("seen_by", ["the transport", "the kernel alone"])
async def test_a_slow_reader_of_a_large_frame_is_not_stalled(seen_by: str) -> None:
    """S36: 1 kB/s is slow. A stall is no progress at all, not even in what the kernel holds for the peer."""
    writing = Writing(ScriptedTransport(room=0))
    await writing.put(audio(100_000))
    for _ in range(20):
        writing.timers.advance(20)
        if seen_by == "the transport":
            writing.transport.held_bytes -= 1000
        else:
            writing.transport.kernel_took += 1000
    assert writing.stalls == 0
    writing.timers.advance(34)
    assert writing.stalls == 1
    writing.outbound.abandon()
    await writing.task


async def test_a_reader_that_keeps_up_is_never_looked_at() -> None:
    writing = Writing(ScriptedTransport())
    await writing.put(audio(), audio())
    assert writing.timers.timers == []
    writing.outbound.abandon()
    await writing.task


@pytest.mark.parametrize("room", [0, 10])
async def test_a_lost_connection_ends_the_writer(room: int) -> None:
    writing = Writing(ScriptedTransport(room=room))
    await writing.put(audio())
    writing.transport.lose()
    await writing.put(audio())
    await writing.task
    assert writing.outbound.ended
    assert writing.timers.live == []
    writing.outbound.end(1000, "too late")
    assert len(writing.transport.written) == 1


async def test_ending_a_lost_connection_is_quiet() -> None:
    writing = Writing(ScriptedTransport())
    writing.transport.lose()
    writing.outbound.end(1000, "nobody hears", PONG)
    await writing.task
    assert writing.transport.written == []
    assert writing.timers.live == []


async def test_abandoning_wakes_and_ends_a_writer_that_has_nothing_to_do() -> None:
    writing = Writing(ScriptedTransport())
    await settle()
    writing.outbound.abandon()
    await writing.task
    assert writing.transport.aborted


async def test_abandoning_leaves_an_end_that_has_begun() -> None:
    writing = Writing(ScriptedTransport())
    writing.outbound.end(1000, "")
    writing.outbound.abandon()
    await writing.task
    assert not writing.transport.aborted


@pytest.mark.parametrize("room", [0, 10])
async def test_a_cancelled_writer_leaves_no_timer_and_takes_no_more(room: int) -> None:
    """At the wait for room, and at the wait for work."""
    writing = Writing(ScriptedTransport(room=room))
    await writing.put(audio())
    writing.task.cancel()
    await asyncio.wait([writing.task])
    assert writing.outbound.ended
    assert writing.timers.live == []
    await writing.put(audio())
    assert len(writing.transport.written) == 1


async def test_a_fault_in_taking_aborts_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Frame | None:
        raise RuntimeError("a fault of ours")

    transport = ScriptedTransport()
    outbound = Outbound(
        transport, take=broken, sent=lambda: None, stalled=lambda: None, write_stall_s=30, close_wait_s=2
    )
    await outbound.run()
    assert transport.aborted
    assert "a writer failed" in caplog.text
