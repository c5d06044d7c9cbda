"""A session's way to a StreamSynth server: one WebSocket on the speech route."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import Outcome
from streamsynth.graph.flow import Status
from streamsynth.realtime import speech_messages as wire
from streamsynth.realtime.limits import Limits
from streamsynth.remote_errors import closed_connection, connection_failed, known_code
from streamsynth.remote_socket import CONNECT_TIMEOUT_S, KEEP_ALIVE_S, connect_socket
from streamsynth.remote_utterance import RemoteUtterance

MAX_UNREAD_NS = 5_000_000_000
"""The socket is not read while this much speech is unread, so that the server stops making more."""

DEAD_PEER_S = 40.0

_MESSAGE_CHARACTERS = 16 * 1024  # at most 96 KiB as JSON; a server takes messages up to 128 KiB
_OUTBOX_BYTES = 64 * 1024
_FIELDS = {"response_format": "pcm", "stream_audio": True, "ack": True}

_decoders = {name: msgspec.json.Decoder(kind) for name, kind in wire.SERVER_MESSAGES.items()}
_envelope = msgspec.json.Decoder(dict[str, object])


class RemoteConnection:
    """`url` is the route's own, as `socket_url` gives it.

    Everything that changes state is one plain call, so a cancelled caller leaves nothing half-done.

    Three tasks: one reads the socket, one writes what the outbox holds, one keeps the session alive while its owner
    holds it open.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url = url
        self._api_key = api_key
        self.sample_rate = 24_000
        self.text_characters = Limits().text_characters
        self.ignored: tuple[str, ...] = ()
        self._idle_s = Limits().idle_s
        self._socket: ClientConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._outbox: deque[str] = deque()
        self._outbox_bytes = 0
        self._changed = asyncio.Event()  # the outbox has more
        self._drained = asyncio.Event()
        self._readable = asyncio.Event()
        self._answers: deque[asyncio.Future[None]] = deque()
        self._unread_ns = 0
        self._unfinished: set[RemoteUtterance] = set()
        self._live: dict[int, RemoteUtterance] = {}  # those that the server knows, by its index
        self._speaking: RemoteUtterance | None = None
        self._next_index = 0
        self._heard_s = 0.0
        self._paused = False
        self._ended: StreamSynthError | None = None
        self._closing: asyncio.Task[None] | None = None

    # For the session

    async def open(self, fields: Mapping[str, object]) -> None:
        try:
            self._socket = await connect_socket(self._url, self._api_key)
            self._heard_s = asyncio.get_running_loop().time()
            self._tasks = [
                asyncio.create_task(self._read(self._socket)),
                asyncio.create_task(self._write(self._socket)),
            ]
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.configure(fields)
            self._tasks.append(asyncio.create_task(self._keep_alive()))
        except TimeoutError:
            await self.close()
            message = f"the server did not answer within {CONNECT_TIMEOUT_S:g} s"
            raise connection_failed(message) from None
        except BaseException:
            await self.close()
            raise

    def configure(self, fields: Mapping[str, object]) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ended is not None:
            answer.set_exception(self._ended)
            return answer
        self._answers.append(answer)
        self._readable.set()
        self._post({"type": "session.config", **fields, **_FIELDS})
        return answer

    def begin(self) -> RemoteUtterance:
        if self._ended is not None:
            raise self._ended
        utterance = RemoteUtterance(self)
        self._unfinished.add(utterance)
        utterance.outcome.add_done_callback(lambda _: self._unfinished.discard(utterance))
        return utterance

    async def drain(self) -> None:
        while self._outbox_bytes > _OUTBOX_BYTES and self._ended is None:
            self._drained.clear()
            await self._drained.wait()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    # For the utterances

    def post_text(self, utterance: RemoteUtterance, text: str) -> None:
        if self._enter(utterance):
            for start in range(0, len(text), _MESSAGE_CHARACTERS):
                self._post({"type": "input.text", "text": text[start : start + _MESSAGE_CHARACTERS]})

    def post_flush(self, utterance: RemoteUtterance) -> None:
        if self._enter(utterance):
            self._post({"type": "input.done"})

    def post_cancel(self, utterance: RemoteUtterance) -> None:
        if utterance.index is None:  # the server never heard of it
            utterance.abandon()
        else:
            self._post({"type": "input.cancel", "utterance_index": utterance.index})

    def count_unread(self, media_ns: int) -> None:
        self._unread_ns += media_ns
        self._readable.set()

    def _enter(self, utterance: RemoteUtterance) -> bool:
        """Count the utterance as the server will, at the first message of it."""
        if self._ended is not None:
            utterance.finish(Outcome(status=Status.FAILED, error=self._ended))
            return False
        if utterance.index is None:
            utterance.index = self._next_index
            self._live[utterance.index] = utterance
            self._next_index += 1
        return True

    def _post(self, message: Mapping[str, object]) -> None:
        data = json.dumps(message)
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._changed.set()

    # The socket

    async def _read(self, socket: ClientConnection) -> None:
        try:
            while True:
                message = await socket.recv()
                self._heard_s = asyncio.get_running_loop().time()
                self._take(message)
                await self._wait_for_readers()
        except ConnectionClosed as closed:
            self._lose(closed_connection(closed))
        except StreamSynthError as broken:
            self._lose(broken)
            socket.transport.abort()
        finally:
            self._lose(connection_failed("the connection is no longer read"))

    async def _wait_for_readers(self) -> None:
        """Until less is unread, or somebody waits for an answer that may lie behind what is unread."""
        while self._unread_ns > MAX_UNREAD_NS and not self._answers and self._ended is None:
            self._paused = True
            self._readable.clear()
            await self._readable.wait()
        self._paused = False

    async def _write(self, socket: ClientConnection) -> None:
        try:
            while True:
                while self._outbox:
                    data = self._outbox.popleft()
                    await socket.send(data)
                    self._outbox_bytes -= len(data)
                    self._drained.set()
                self._changed.clear()
                await self._changed.wait()
        except ConnectionClosed:
            pass  # The reader says why.

    async def _keep_alive(self) -> None:
        """A session that its owner holds open is not idle; and a server that says nothing at all is gone."""
        loop = asyncio.get_running_loop()
        while self._ended is None:
            await asyncio.sleep(min(KEEP_ALIVE_S, self._idle_s / 3))
            if self._paused:
                self._heard_s = loop.time()
            elif loop.time() - self._heard_s > DEAD_PEER_S:
                self._lose(connection_failed(f"nothing was heard of the server for {DEAD_PEER_S:g} s"))
            else:
                self._post({"type": "session.ping"})

    async def _close(self) -> None:
        self._lose(StreamSynthError(ErrorCode.CANCELLED, "the speech session was closed"), abandon=True)
        for task in self._tasks[1:]:
            task.cancel()
        if self._socket is not None:
            # The reader reads on, so that the server's close frame is found behind what was on its way.
            await self._socket.close()
        if self._tasks:
            self._tasks[0].cancel()
            await asyncio.wait(self._tasks)

    def _lose(self, error: StreamSynthError, *, abandon: bool = False) -> None:
        """Nothing more will come: end what is unfinished and wake who waits. Only the first call counts."""
        if self._ended is not None:
            return
        self._ended = error
        for utterance in self._unfinished:
            if abandon:
                utterance.abandon()
            else:
                utterance.finish(Outcome(status=Status.FAILED, error=error))
        self._live.clear()
        for answer in self._answers:
            _resolve(answer, error)
        self._answers.clear()
        self._drained.set()
        self._readable.set()

    # What the server says

    def _take(self, message: str | bytes) -> None:
        if self._ended is not None:
            return
        if isinstance(message, bytes):
            if self._speaking is None:
                raise StreamSynthError(ErrorCode.INTERNAL_ERROR, "the server sent audio outside an utterance")
            self._speaking.take_audio(message)
            return
        try:
            decoder = _decoders.get(str(_envelope.decode(message).get("type")))
            # Messages of a newer server are no business of ours.
            if decoder is not None:
                self._obey(decoder.decode(message))
        except msgspec.DecodeError as error:
            raise StreamSynthError(ErrorCode.INTERNAL_ERROR, f"the server sent no valid message: {error}") from None

    def _obey(self, message: wire.ServerMessage) -> None:
        match message:
            case wire.SessionConfigured():
                self._configured(message)
            case wire.AudioStart(utterance_index=index):
                self._speaking = self._live.get(index)
                if self._speaking is not None:
                    self._speaking.start_segment(message.sentence_index, message.sentence_text, message.sample_rate)
            case wire.AudioDone(utterance_index=index, error=False):
                if utterance := self._live.get(index):
                    utterance.end_segment(message.total_samples)
            case wire.SessionDone(utterance_index=index):
                if utterance := self._live.get(index):
                    del self._live[index]
                    self._speaking = None if self._speaking is utterance else self._speaking
                    utterance.end(Status(message.status), message.finish_reason, message.total_samples)
            case wire.Error():
                self._refused(message)

    def _configured(self, message: wire.SessionConfigured) -> None:
        self.sample_rate = message.config.sample_rate
        self.ignored = message.ignored
        self.text_characters = int(message.limits.get("text_characters", self.text_characters))
        self._idle_s = message.limits.get("idle_s", self._idle_s)
        if self._answers:
            _resolve(self._answers.popleft(), None)

    def _refused(self, message: wire.Error) -> None:
        error = StreamSynthError(
            known_code(message.code, ErrorCode.INTERNAL_ERROR),
            message.message,
            param=message.param,
            retry_after_ms=message.retry_after_ms,
        )
        utterance = self._live.get(message.utterance_index) if message.utterance_index is not None else None
        if message.fatal:
            self._lose(error)
        elif utterance is not None and error.code is ErrorCode.TEXT_TOO_LONG:
            utterance.refuse(error)
        elif utterance is not None and error.code is not ErrorCode.CANCEL_NOT_ACTIVE:
            utterance.note_failure(error)
        elif message.utterance_index is None and self._answers:
            _resolve(self._answers.popleft(), error)


def _resolve(answer: asyncio.Future[None], error: StreamSynthError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
