"""The video of one session while it is being made: its flow, its encoder, and the task that joins them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeVar

from streamsynth.codecs import EncodingLane, VideoEncoder, open_video_encoder
from streamsynth.errors import StreamSynthError
from streamsynth.flows import Outcome, VideoFlow
from streamsynth.graph.flow import first_cause
from streamsynth.interactions.messages import Interaction, Notice, Refused
from streamsynth.observe.metrics import Metrics
from streamsynth.realtime.admission import Admission
from streamsynth.realtime.auth import Caller
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.maker import Maker
from streamsynth.realtime.picture_queue import PictureQueue
from streamsynth.realtime.video_fields import VideoSettings
from streamsynth.realtime.video_session import VideoSession
from streamsynth.runtime import Runtime
from streamsynth.video import VideoChunk

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Studio:
    """What a video is made with. `room` is set while the transport waits for pictures, `moved` whenever the session's
    clock may have; `settle` is to be called after everything that the session is told."""

    session: VideoSession
    runtime: Runtime
    admission: Admission
    caller: Caller
    metrics: Metrics
    limits: Limits
    room: asyncio.Event
    moved: asyncio.Event
    settle: Callable[[], None]


class VideoMaker(Maker[VideoFlow]):
    """The one video of its session."""

    def __init__(self, settings: VideoSettings, studio: Studio) -> None:
        self._settings = settings
        self._studio = studio
        self._finished = False
        self._received = 0
        self._chunks = 0
        self._last_chunk = -1
        self._begun = False
        self._keyframes = -1
        self._lane = EncodingLane()
        request = settings.request
        self._encoder: VideoEncoder = open_video_encoder(
            settings.format,
            width=request.width,
            height=request.height,
            fps=settings.fps,
            payload_bytes=studio.limits.video_message_bytes,
        )
        super().__init__("video", studio.metrics)

    def steer(self, interaction: Interaction) -> None:
        if self._flow is None or self._finished:
            return
        try:
            self._flow.interact(interaction)
        except StreamSynthError as error:
            self._noticed(Refused(interaction.event_id, error.to_wire()))

    def finish(self) -> None:
        """Make no further chunk; what is made still comes."""
        self._finished = True
        if self._flow is not None:
            self._flow.finish()

    async def _make(self) -> None:
        studio = self._studio
        with studio.admission.request(studio.caller) as ticket:
            await ticket.granted()
            flow = self._flow = studio.runtime.open_video(self._settings.model, self._settings.request, self._noticed)
            flow.outcome.add_done_callback(self._ended)
            studio.session.video_opened(flow.id, flow.seed or 0)
            if self._finished:
                flow.finish()
            await (self._pump_dropping(flow) if self._settings.drops else self._pump(flow))
            outcome = await asyncio.shield(flow.outcome)
        trailer = await self._in_thread(self._encoder.trailer) if self._begun else b""
        studio.session.completed(
            chunks=self._chunks,
            frames=self._received,
            stopped=outcome.finish_reason != "length",
            trailer=trailer,
        )
        studio.settle()

    async def _pump(self, flow: VideoFlow) -> None:
        """Each chunk is taken, which lets the model make another, when the transport waits for it."""
        final = False
        while not final:
            await self._studio.room.wait()
            chunk = await self._receive(flow)
            final = chunk.final
            await self._send(chunk)

    async def _pump_dropping(self, flow: VideoFlow) -> None:
        """The model does not wait for the transport: what that has no room for is held, and the oldest dropped."""
        held = PictureQueue(self._studio.limits.video_held_chunks * self._settings.chunk_frames)
        arrived = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fill(held, arrived, flow))
                group.create_task(self._empty(held, arrived))
        except ExceptionGroup as errors:
            raise first_cause(errors) from errors

    async def _fill(self, held: PictureQueue, arrived: asyncio.Event, flow: VideoFlow) -> None:
        final = False
        while not final:
            chunk = await self._receive(flow)
            final = chunk.final
            dropped = held.put(chunk)
            if dropped is not None:
                self._studio.session.pictures_dropped(dropped)
                self._studio.settle()
            arrived.set()

    async def _empty(self, held: PictureQueue, arrived: asyncio.Event) -> None:
        final = False
        while not final:
            await self._studio.room.wait()
            arrived.clear()
            if held.empty:
                await arrived.wait()
                continue
            chunk = held.take()
            final = chunk.final
            await self._send(chunk)

    async def _receive(self, flow: VideoFlow) -> VideoChunk:
        """The next chunk, not before its time."""
        studio = self._studio
        while (wait_s := studio.session.wait_s(self._received, monotonic())) > 0:
            studio.moved.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await studio.moved.wait()
            except TimeoutError:
                pass
        chunk = await flow.receive()
        self._received += len(chunk.pictures)
        if len(chunk.pictures) and chunk.report.chunk != self._last_chunk:
            self._last_chunk = chunk.report.chunk
            self._chunks += 1
        return chunk

    async def _send(self, chunk: VideoChunk) -> None:
        if not len(chunk.pictures):
            return
        studio, encoder = self._studio, self._encoder
        group = chunk.report.chunk // studio.limits.video_keyframe_chunks
        keyframe, self._keyframes = group != self._keyframes, group
        if not self._begun:
            header = await self._in_thread(encoder.header)
            self._begun = True
            studio.session.video_begun(encoder.codec, encoder.mime, header)
        encode = partial(encoder.encode, chunk.pictures, chunk.first_frame, keyframe=keyframe)
        payloads = await self._in_thread(encode)
        studio.session.chunk_made(chunk.report, payloads)
        studio.settle()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        await self._lane.idle()
        return await self._lane.start(call)

    def _noticed(self, notice: Notice) -> None:
        self._studio.session.noticed(notice, monotonic())
        self._studio.settle()

    def _ended(self, outcome: asyncio.Future[Outcome]) -> None:
        """A failure is told at once, not when its turn comes behind the chunks that wait for their time."""
        error = outcome.result().error
        # Before the first chunk nothing waits for its time: the task that receives it ends with the error.
        if error is not None and self._received:
            self._failed(error)

    def _failed(self, error: StreamSynthError) -> None:
        session = self._studio.session
        if error.blames_request and not self._received:
            session.start_refused(error, monotonic())
        else:
            session.failed(error)
        self._studio.settle()
