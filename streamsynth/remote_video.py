"""A video session's way to a server: `WS /v1/realtime/video`, its pictures decoded as they come."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from streamsynth.codecs.mp4_reader import FragmentDecoder, is_whole
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.edge import EndOfEdge
from streamsynth.interactions.messages import Applied, ChunkReport, Superseded
from streamsynth.realtime import video_messages as wire
from streamsynth.realtime.interaction_ledger import InteractionLedger
from streamsynth.realtime.messages import Error, ServerMessage
from streamsynth.remote_errors import closed_connection, connection_failed, known_code
from streamsynth.remote_socket import CLOSE_TIMEOUT_S, KEEP_ALIVE_S, connect_socket
from streamsynth.video import VideoChunk
from streamsynth.video_session import Receipt, Receipts, VideoConfig

MAX_UNREAD_CHUNKS = 2

_message = msgspec.json.Decoder(dict[str, object])
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in wire.SERVER_MESSAGES.items()}


class RemoteVideo:
    """One socket. At most MAX_UNREAD_CHUNKS are taken from it that nobody has read: the server then waits."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url = url
        self._api_key = api_key
        self._socket: ClientConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._started: asyncio.Future[VideoConfig] = asyncio.get_running_loop().create_future()
        self._started.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._ledger = InteractionLedger()
        self._receipts = Receipts()
        self._decoder: FragmentDecoder | None = None
        self._due: wire.ChunkMetadata | None = None
        self._first: wire.ChunkMetadata | None = None
        self._parts = b""
        self._chunks: deque[VideoChunk] = deque()
        self._changed = asyncio.Condition()
        self._ended: Exception | None = None
        self._shape = (0, 0, 3)
        self._fps = self._ticks = 1
        self._num_frames: object = None
        self._final = False
        """The chunk that ends the video is among those that were put."""
        self._over = False
        """It was received."""

    async def open(self, fields: Mapping[str, object]) -> VideoConfig:
        self._num_frames = fields.get("num_frames")
        try:
            self._socket = await connect_socket(self._url, self._api_key)
            self._tasks = [asyncio.create_task(self._read(self._socket)), asyncio.create_task(self._keep_alive())]
            await self._socket.send(
                json.dumps({"type": "session.start", "pacing": "none", **fields, "format": "m4s", "receipts": True})
            )
            return await asyncio.shield(self._started)
        except BaseException:
            await self.close()
            raise

    async def receive(self) -> VideoChunk:
        async with self._changed:
            await self._changed.wait_for(lambda: self._chunks or self._ended is not None)
            if self._chunks:
                self._changed.notify_all()
                chunk = self._chunks.popleft()
                self._over = chunk.final
                return chunk
        assert self._ended is not None
        raise self._ended

    def interact(self, fields: Mapping[str, object]) -> asyncio.Future[Receipt]:
        # The server's own checks, here: what cannot be asked is refused at once, as by the models of this process.
        interaction = wire.parse_interaction(fields, f"evt-{secrets.token_hex(8)}")
        if self._over or self._ended is not None:
            raise StreamSynthError(ErrorCode.INTERACTION_NOT_ACTIVE, "the video is over")
        self._ledger.accept(interaction, 0.0)
        self._ledger.settle(interaction.event_id)  # How many may wait, the server knows sooner.
        receipt = self._receipts.open(interaction.event_id)
        asked = {**fields, "event_id": interaction.event_id}
        self._post({"type": "session.interaction", "interaction": asked})
        return receipt

    def stop(self) -> None:
        self._post({"type": "session.stop"})

    async def close(self) -> None:
        if self._socket is not None:
            if self._ended is None:
                self._ended = StreamSynthError(ErrorCode.CANCELLED, "the video was cancelled")
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._socket.close()
            except TimeoutError:
                self._socket.transport.abort()
            self._receipts.end()

    def _post(self, message: Mapping[str, object]) -> None:
        if self._socket is not None and self._ended is None:
            task = asyncio.create_task(self._send(self._socket, json.dumps(message)))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _keep_alive(self) -> None:
        """A viewer who pauses is still there."""
        while self._ended is None:
            await asyncio.sleep(KEEP_ALIVE_S)
            self._post({"type": "session.ping"})

    async def _send(self, socket: ClientConnection, data: str) -> None:
        try:
            await socket.send(data)
        except ConnectionClosed:
            pass  # The reader says why.

    async def _read(self, socket: ClientConnection) -> None:
        try:
            while self._ended is None:
                await self._take(await socket.recv())
        except ConnectionClosed as closed:
            await self._end(closed_connection(closed))
        except (msgspec.DecodeError, ValueError) as error:
            await self._end(StreamSynthError(ErrorCode.INTERNAL_ERROR, f"the server sent no valid message: {error}"))
            socket.transport.abort()

    async def _end(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error
        if not self._started.done():
            self._started.set_exception(
                error if isinstance(error, StreamSynthError) else connection_failed("the video ended before it began")
            )
        self._receipts.end()
        async with self._changed:
            self._changed.notify_all()

    async def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            await self._take_payload(message)
            return
        decoder = _decoders.get(str(_message.decode(message).get("type")))
        # Messages of a newer server are no business of ours.
        if decoder is not None:
            await self._obey(decoder.decode(message))

    async def _obey(self, message: ServerMessage) -> None:
        match message:
            case wire.VideoStart(config=config):
                self._shape, self._fps = (config.height, config.width, 3), config.fps
                self._started.set_result(
                    VideoConfig(
                        model=message.model,
                        width=config.width,
                        height=config.height,
                        fps=config.fps,
                        chunk_frames=config.chunk_frames,
                        seed=int(message.seed),
                    )
                )
            case wire.ChunkMetadata():
                self._due = message
                self._ticks = message.timescale // self._fps
            case wire.InteractionApplied(event_id=event_id, generation_chunk_index=chunk, pts=pts):
                first_frame = pts // self._ticks
                self._receipts.settle(event_id, Applied(event_id, chunk, first_frame))
            case wire.InteractionSuperseded(event_id=event_id, by=by):
                self._receipts.settle(event_id, Superseded(event_id, by))
            case wire.SessionDone(frames=frames, chunks=chunks):
                if not self._final:  # It was stopped: nothing said which of its pictures would be the last.
                    await self._put(self._chunk([], frames, ChunkReport(chunks), final=True))
                await self._end(EndOfEdge())
            case Error():
                await self._refused(message)

    async def _refused(self, message: Error) -> None:
        error = StreamSynthError(
            known_code(message.code, ErrorCode.INTERNAL_ERROR),
            message.message,
            param=message.param,
            retry_after_ms=message.retry_after_ms,
        )
        if message.event_id is not None and error.code is ErrorCode.INTERACTION_FAILED:
            self._receipts.settle(message.event_id, error)
        elif message.event_id is not None:
            self._ledger.forget(message.event_id)
            self._receipts.forget(message.event_id, error)
        elif message.fatal or not self._started.done():
            await self._end(error)

    async def _take_payload(self, payload: bytes) -> None:
        metadata, self._due = self._due, None
        if metadata is None:
            raise ValueError("a binary message without metadata")
        if metadata.kind == "init":
            self._decoder = FragmentDecoder(payload)
        elif metadata.kind == "media":
            await self._take_media(metadata, payload)

    async def _take_media(self, metadata: wire.ChunkMetadata, payload: bytes) -> None:
        """A fragment may come in several payloads: the first tells its place, the last what completes in it."""
        first = self._first = self._first or metadata
        self._parts += payload
        if self._decoder is None:
            raise ValueError("pictures before the header")
        if not is_whole(self._parts):
            return
        pictures = await asyncio.to_thread(self._decoder.decode, self._parts)
        self._first, self._parts = None, b""
        report = ChunkReport(
            metadata.generation_chunk_index or 0,
            first.started_event_ids,
            metadata.active_event_ids,
            metadata.completed_event_ids,
        )
        first_frame = first.pts // self._ticks
        self._final = first_frame + len(pictures) == self._num_frames
        await self._put(self._chunk(pictures, first_frame, report, final=self._final))

    def _chunk(
        self, pictures: list[npt.NDArray[np.uint8]], first_frame: int, report: ChunkReport, *, final: bool = False
    ) -> VideoChunk:
        stacked = np.stack(pictures) if pictures else np.zeros((0, *self._shape), np.uint8)
        return VideoChunk(stacked, self._fps, first_frame, report, final)

    async def _put(self, chunk: VideoChunk) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._chunks) < MAX_UNREAD_CHUNKS or self._ended is not None)
            self._chunks.append(chunk)
            self._changed.notify_all()
