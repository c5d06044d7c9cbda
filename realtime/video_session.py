"""The video socket's protocol as a state machine: no sockets, no tasks, no clock of its own.

Messages and what becomes of the video go in, with the time; frames to send come out of `take`, and what else is to be
done out of `effects`. One connection is one video.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from streamsynth.codecs.pictures import TICKS, Payload
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Applied, ChunkReport, Notice, Progress, Refused, Superseded
from streamsynth.realtime import video_messages as wire
from streamsynth.realtime.frame_queue import Frame
from streamsynth.realtime.interaction_ledger import InteractionLedger
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.media_clock import MediaClock
from streamsynth.realtime.messages import ClientMessage, Error, ServerMessage, SessionPing, SessionPong
from streamsynth.realtime.picture_queue import Dropped
from streamsynth.realtime.socket_session import SocketSession
from streamsynth.realtime.video_events import Effect, FinishVideo, Meter, Observer, StartVideo, Steer, StopVideo
from streamsynth.realtime.video_fields import VideoSettings
from streamsynth.realtime.video_queue import VideoQueue


class Stage(Enum):
    WAITING = auto()
    """For an accepted `session.start`."""
    STARTING = auto()
    """The flow is opened; nothing of it has come."""
    RUNNING = auto()
    """`video.start` is out: it can be steered."""
    FINISHING = auto()
    """It was told to begin no further chunk."""
    DONE = auto()
    """All of it is queued, `session.done` behind it."""


class VideoSession(SocketSession[Effect]):
    """One connection. `draw_id` makes an id for an interaction that brings none."""

    def __init__(
        self,
        parse_start: Callable[[Mapping[str, Any]], VideoSettings],
        limits: Limits,
        observer: Observer,
        draw_id: Callable[[], str],
        now_s: float,
    ) -> None:
        super().__init__(limits, "session.start", now_s)
        self._parse_start = parse_start
        self._observer = observer
        self._draw_id = draw_id
        self._queue = VideoQueue()
        self._ledger = InteractionLedger()
        self._settings: VideoSettings | None = None
        self._clock = MediaClock(0.0)
        self._meter: Meter | None = None
        self._stage = Stage.WAITING
        self._request_id: str | None = None
        self._seed = 0
        self._payloads = 0
        self._last_chunk: int | None = None

    # What goes out

    def take(self, now_s: float) -> Frame | None:
        """The next frame, which counts as accepted by the transport from here on: hand it over without an await."""
        taken = self._queue.take()
        if taken is None:
            return None
        frame, metadata = taken
        if metadata is not None:
            self._accepted(metadata, now_s)
        if isinstance(frame.message, wire.SessionDone):
            self._finish_meter("completed")
            self._end(*((1001, self._drain_reason) if self._clocks.draining else (1000, "session.done")))
        return frame

    @property
    def has_room(self) -> bool:
        """Whether the transport has taken all pictures that were queued."""
        return self._queue.pairs == 0

    def wait_s(self, first_frame: int, now_s: float) -> float:
        """How long until the chunk that begins with this picture may be taken from the model."""
        settings = self._settings
        if settings is None or not settings.paced or self._stage is not Stage.RUNNING:
            return 0.0
        return self._clock.wait_s(first_frame / settings.fps, now_s)

    # What comes in from the client

    def receive(self, message: ClientMessage, now_s: float) -> None:
        if self.ended:
            return
        try:
            match message:
                case wire.SessionStart(fields):
                    self._start(fields, now_s)
                case wire.SessionInteraction(fields):
                    self._interact(fields, now_s)
                case wire.SessionStop():
                    self._stop()
                case wire.PlaybackPosition(pts):
                    self._require_start()
                    self._clock.reported(pts / self._timescale, now_s)
                case SessionPing():
                    self._send(SessionPong())
        except StreamSynthError as error:
            self.refuse(error)

    def refuse(self, error: StreamSynthError, *, event_id: str | None = None) -> None:
        """Answer a message that cannot be served. Not fatal, except where the message itself was too large."""
        if self.ended:
            return
        self._observer.refused(error.code)
        if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.BINARY_NOT_ALLOWED):
            self._end_with(error)
        else:
            self._send(Error.of(error, request_id=self._request_id, event_id=event_id))

    def _start(self, fields: Mapping[str, Any], now_s: float) -> None:
        if self._stage is not Stage.WAITING:
            message = "the video was started already: one connection is one video"
            raise StreamSynthError(ErrorCode.ALREADY_STARTED, message)
        settings = self._settings = self._parse_start(fields)
        lead_s = self._limits.video_lead_chunks * settings.chunk_frames / settings.fps
        self._clock = MediaClock(lead_s, live=settings.drops)
        self._meter = self._observer.video_started(settings.model, settings.fps, now_s)
        self._stage = Stage.STARTING
        self._effects.append(StartVideo(settings))

    def _interact(self, fields: Mapping[str, Any], now_s: float) -> None:
        try:
            if self._stage is not Stage.RUNNING:
                when = "not running yet" if self._stage in (Stage.WAITING, Stage.STARTING) else "over, or was stopped"
                raise StreamSynthError(ErrorCode.INTERACTION_NOT_ACTIVE, f"the video is {when}")
            interaction = wire.parse_interaction(fields, self._draw_id())
            new = self._ledger.accept(interaction, now_s)
        except StreamSynthError as error:
            self.refuse(error, event_id=wire.known_event_id(fields))
            return
        self._send(wire.InteractionQueued(request_id=self._id, event_id=interaction.event_id))
        if new:
            self._effects.append(Steer(interaction))

    def _require_start(self) -> None:
        if self._stage is Stage.WAITING:
            raise StreamSynthError(ErrorCode.CONFIG_REQUIRED, "the first message must be session.start")

    def _stop(self) -> None:
        self._require_start()
        if self._stage in (Stage.STARTING, Stage.RUNNING):
            self._stage = Stage.FINISHING
            self._effects.append(FinishVideo())

    # What comes in from the making

    def video_opened(self, request_id: str, seed: int) -> None:
        self._request_id, self._seed = request_id, seed

    def video_begun(self, codec: str, mime: str, header: bytes) -> None:
        """The first pictures are there."""
        settings = self._settings
        if self.ended or settings is None:
            return
        config = wire.VideoConfig(
            width=settings.request.width,
            height=settings.request.height,
            fps=settings.fps,
            codec=codec,
            mime=mime,
            chunk_frames=settings.chunk_frames,
            keyframe_every_chunks=self._limits.video_keyframe_chunks,
        )
        if self._stage is Stage.STARTING:
            self._stage = Stage.RUNNING
        self._send(
            wire.VideoStart(
                request_id=self._id,
                model=settings.model,
                format=settings.format.value,
                seed=str(self._seed),
                config=config,
                ignored=settings.ignored,
            )
        )
        if header:
            self._pair("init", header)

    def chunk_made(self, report: ChunkReport, payloads: Sequence[Payload]) -> None:
        """The pictures of one chunk, or a part of it. The first payload says what starts, the last what completes."""
        if self.ended:
            return
        cut = [part for payload in payloads for part in self._cut(payload)]
        begins, self._last_chunk = self._last_chunk != report.chunk, report.chunk
        for number, part in enumerate(cut):
            self._pair(
                "media",
                part.data,
                part,
                generation_chunk_index=report.chunk,
                started_event_ids=report.started if begins and number == 0 else (),
                active_event_ids=report.active,
                completed_event_ids=report.completed if report.last and number == len(cut) - 1 else (),
            )

    def pictures_dropped(self, dropped: Dropped) -> None:
        if self._meter is not None:
            self._meter.dropped(dropped.frames)
        pts = dropped.first_frame * TICKS
        self._send(wire.VideoDropped(request_id=self._id, count=dropped.frames, pts=pts))

    def noticed(self, notice: Notice, now_s: float) -> None:
        """What the worker says of an interaction."""
        if self.ended or self._settings is None or isinstance(notice, Progress):
            return
        accepted_s = self._ledger.settle(notice.event_id)
        match notice:
            case Applied(event_id, chunk, first_frame):
                if accepted_s is not None and self._meter is not None:
                    self._meter.applied(now_s - accepted_s)
                pts = first_frame * TICKS
                receipt: ServerMessage = wire.InteractionApplied(
                    request_id=self._id, event_id=event_id, generation_chunk_index=chunk, pts=pts
                )
            case Superseded(event_id, by):
                receipt = wire.InteractionSuperseded(request_id=self._id, event_id=event_id, by=by)
            case Refused(event_id, error):
                self.refuse(StreamSynthError.from_wire(error), event_id=event_id)
                return
        if self._settings.receipts:
            self._send(receipt)

    def completed(self, *, chunks: int, frames: int, stopped: bool, trailer: bytes) -> None:
        """Nothing more is made."""
        if self.ended:
            return
        if trailer:
            self._pair("trailer", trailer, Payload(trailer, 0, frames))
        self._stage = Stage.DONE
        self._queue.put_last(wire.SessionDone(request_id=self._id, chunks=chunks, frames=frames, stopped=stopped))

    def start_refused(self, error: StreamSynthError, now_s: float) -> None:
        """The model does not make what was asked for, and has made nothing: as if a field had been refused."""
        if self.ended or self._stage is not Stage.STARTING:
            self.failed(error)  # One that was stopped meanwhile is not asked for again.
            return
        self.refuse(error)
        self._finish_meter("failed")
        self._settings = self._meter = self._request_id = None
        self._stage = Stage.WAITING
        self._clocks.await_first_message(now_s)

    def failed(self, error: StreamSynthError) -> None:
        """The video ends here; what was made and not sent is not sent."""
        if not self.ended:
            self._observer.refused(error.code)
            self._finish_meter("failed")
            self._end_with(error)

    # How things are said and done

    @property
    def _configured(self) -> bool:
        return self._settings is not None

    @property
    def _busy(self) -> bool:
        return True  # Once started, a video runs until the session ends.

    def _begin_draining(self) -> None:
        """As if the client had stopped the video."""
        if self._stage is Stage.WAITING:
            self._end(1001, self._drain_reason)
        else:
            self._stop()

    @property
    def _id(self) -> str:
        return self._request_id or ""

    @property
    def _timescale(self) -> int:
        return self._settings.fps * TICKS if self._settings else TICKS

    def _cut(self, payload: Payload) -> list[Payload]:
        """In pieces of at most a message: pictures count where they begin."""
        limit = self._limits.video_message_bytes
        if len(payload.data) <= limit:
            return [payload]
        starts = range(limit, len(payload.data), limit)
        after = payload.first_frame + payload.frames
        rest = [Payload(payload.data[start : start + limit], 0, after) for start in starts]
        return [Payload(payload.data[:limit], payload.frames, payload.first_frame), *rest]

    def _pair(self, kind: Any, data: bytes, payload: Payload | None = None, **events: Any) -> None:
        metadata = wire.ChunkMetadata(
            request_id=self._id,
            kind=kind,
            transport_chunk_index=self._payloads,
            generation_chunk_index=events.pop("generation_chunk_index", None),
            num_frames=payload.frames if payload else 0,
            byte_length=len(data),
            pts=payload.first_frame * TICKS if payload else 0,
            timescale=self._timescale,
            **events,
        )
        self._payloads += 1
        self._queue.put_pair(metadata, data)

    def _accepted(self, metadata: wire.ChunkMetadata, now_s: float) -> None:
        if metadata.num_frames:
            self._clock.sent((metadata.pts + metadata.num_frames * TICKS) / metadata.timescale, now_s)
        if self._meter is not None:
            self._meter.sent(metadata.num_frames, now_s)
            for event_id in metadata.started_event_ids:
                accepted_s = self._ledger.deliver(event_id)
                if accepted_s is not None:
                    self._meter.delivered(now_s - accepted_s)

    def _send(self, message: ServerMessage) -> None:
        if self.ended:
            return
        self._queue.put_answer(message)
        if self._queue.answer_bytes > self._limits.outbound_message_bytes:
            text = f"{self._queue.answer_bytes} bytes of answers are unread; the limit is "
            text += str(self._limits.outbound_message_bytes)
            self._end_with(StreamSynthError(ErrorCode.STALLED_READER, text))

    def _error(self, error: StreamSynthError) -> Error:
        return Error.of(error, fatal=True, request_id=self._request_id)

    def _finish_meter(self, status: str) -> None:
        if self._meter is not None:
            self._meter.ended(status)

    def _abandon(self) -> None:
        if self._stage not in (Stage.WAITING, Stage.DONE):
            self._effects.append(StopVideo())
        self._finish_meter("cancelled")
        self._queue.clear()
