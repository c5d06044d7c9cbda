"""What the tests of the speech socket share: two clients, one that reads and one that does as it likes; a server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from aiohttp import web
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from streamsynth.codecs.quantise import to_s16
from streamsynth.config.plan import plan
from streamsynth.realtime.app import build_app
from streamsynth.realtime.binding import open_listener
from streamsynth.realtime.connections import accept_connections
from streamsynth.realtime.draining import Draining
from streamsynth.realtime.keys import ADMISSION, DRAINING
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.settings import ServerSettings
from streamsynth.runtime import Runtime
from streamsynth.testing.sine import sine

STREAM = "/v1/audio/speech/stream"
PCM: dict[str, Any] = {"response_format": "pcm", "stream_audio": True}
SAMPLES_PER_CHARACTER = 1200
WAIT_S = 20.0

Event = dict[str, Any] | bytes


def tone(samples: int) -> npt.NDArray[np.int16]:
    """What the sine engine says in so many samples, as pcm."""
    return to_s16(sine(0, samples))


class SpeechClient:
    """A client that reads: events are JSON objects, or bytes for binary frames. Every wait has an end."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket

    async def send(self, kind: str, **fields: Any) -> None:
        await self.websocket.send(json.dumps({"type": kind, **fields}, ensure_ascii=False))

    async def text(self, *pieces: str) -> None:
        for piece in pieces:
            await self.send("input.text", text=piece)

    async def flush(self) -> None:
        await self.send("input.done")

    async def speak(self, *pieces: str) -> list[Event]:
        """One utterance: everything up to its `session.done`."""
        await self.text(*pieces)
        await self.flush()
        return await self.until("session.done")

    async def next(self, wait_s: float = WAIT_S) -> Event:
        async with asyncio.timeout(wait_s):
            message = await self.websocket.recv()
        return json.loads(message) if isinstance(message, str) else message

    async def until(self, *kinds: str) -> list[Event]:
        """The events up to and including the first of these kinds ("audio": a binary frame)."""
        events: list[Event] = []
        while not events or kind(events[-1]) not in kinds:
            events.append(await self.next())
        return events

    async def closed(self) -> tuple[list[Event], int, str]:
        """The events until the server closes, and the close frame's code and reason."""
        events: list[Event] = []
        try:
            while True:
                events.append(await self.next())
        except ConnectionClosed as closing:
            frame = closing.rcvd
            return events, frame.code if frame else 1006, frame.reason if frame else ""


def kind(event: Event) -> str:
    return "audio" if isinstance(event, bytes) else str(event["type"])


def kinds(events: list[Event]) -> list[str]:
    """The kinds of the events, with neighbouring binary frames as one."""
    found: list[str] = []
    for event in events:
        if kind(event) != "audio" or found[-1:] != ["audio"]:
            found.append(kind(event))
    return found


def audio(events: list[Event]) -> bytes:
    return b"".join(event for event in events if isinstance(event, bytes))


def last(events: list[Event]) -> dict[str, Any]:
    assert isinstance(events[-1], dict)
    return events[-1]


@asynccontextmanager
async def speaking(url: str, *, configured: bool = True, **config: Any) -> AsyncIterator[SpeechClient]:
    """A session that has sent its config, which may be the empty one, unless not `configured`."""
    address = url.replace("http", "ws", 1) + STREAM
    async with connect(address, compression=None, max_size=None, open_timeout=WAIT_S, close_timeout=2) as websocket:
        client = SpeechClient(websocket)
        if configured:
            await client.send("session.config", **config)
        yield client


class RawClient:
    """A socket that has done the handshake and then does what the test says: read nothing, send garbage, vanish."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, url: str, *, path: str = STREAM, receive_buffer: int | None = None) -> Self:
        address = urlsplit(url)
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client = cls(connection)
        await client._loop.sock_connect(connection, (address.hostname, address.port))
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        await client.send_bytes(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await client.read(1)
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        return client

    async def send_bytes(self, data: bytes) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._loop.sock_sendall(self._socket, data)

    async def send(self, kind: str, **fields: Any) -> None:
        await self.send_bytes(frame(json.dumps({"type": kind, **fields}).encode()))

    async def speak(self, text: str, **config: Any) -> None:
        await self.send("session.config", **(config or PCM))
        await self.send("input.text", text=text)
        await self.send("input.done")

    async def read(self, size: int, wait_s: float = WAIT_S) -> bytes:
        """What is there, at most `size` bytes; empty at the end of the connection."""
        async with asyncio.timeout(wait_s):
            return await self._loop.sock_recv(self._socket, size)

    async def read_all(self) -> bytes:
        """Until the connection ends, however it does."""
        data = b""
        try:
            while part := await self.read(65_536):
                data += part
        except ConnectionResetError:
            pass
        return data

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def vanish(self) -> None:
        """End with a reset, as a killed process with unread data does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def frame(payload: bytes, opcode: int = 1, *, final: bool = True) -> bytes:
    """One masked WebSocket frame."""
    length = len(payload)
    short = length if length < 126 else 126 if length < 65_536 else 127
    extended = b"" if short < 126 else struct.pack("!H" if short == 126 else "!Q", length)
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[position % 4] for position, byte in enumerate(payload))
    return bytes([opcode | (0x80 if final else 0), 0x80 | short]) + extended + mask + masked


@dataclass
class Serving:
    """A server in this process, over a real listener and a real worker."""

    url: str
    app: web.Application
    runtime: Runtime

    async def counter(self, name: str) -> int:
        """One of the worker's counters, from a heartbeat that it sent after this call."""
        stage = next(iter(self.runtime.statistics().stages))
        seen = self.runtime.statistics().stages[stage].beat
        await until(lambda: self.runtime.statistics().stages[stage].beat is not seen)
        beat = self.runtime.statistics().stages[stage].beat
        assert beat is not None
        return int(getattr(beat, name)) if hasattr(beat, name) else beat.counters[name]

    async def empty(self) -> None:
        """Return when every registry of the server is empty: sessions, places, flows."""
        admission, draining = self.app[ADMISSION], self.app[DRAINING]

        def nothing_left() -> bool:
            return not (
                admission.sessions
                or admission.running
                or admission.queued
                or draining.running
                or self.runtime.statistics().live_flows
            )

        await until(nothing_left)


async def until(reached: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Look again until it is so: other tasks and processes change it, and no event tells the test."""
    async with asyncio.timeout(wait_s):
        while not reached():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(*settings: str, model: str = "sine", **limits: Any) -> AsyncIterator[Serving]:
    """`settings` are STAGE.FIELD=VALUE, as for `serve --set`. Nothing may be left when the block ends."""
    deployments = plan([model], sets=settings)
    runtime = Runtime(deployments)
    await runtime.start()
    listener = open_listener("127.0.0.1", 0)
    server = ServerSettings(limits=Limits(**limits))
    app = build_app(runtime, deployments, server, Draining(), {})
    runner = web.AppRunner(app, handle_signals=False, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    assert runner.server is not None
    accepting = await accept_connections(runner.server, listener, server.limits, None)
    try:
        yield Serving(f"http://127.0.0.1:{listener.getsockname()[1]}", app, runtime)
    finally:
        accepting.close()
        await runner.cleanup()
        await runtime.stop()
        listener.close()


def parse_frames(data: bytes) -> list[tuple[int, bytes]]:
    """Opcode and payload of each whole frame that a server sent."""
    frames, position = [], 0
    while position + 2 <= len(data):
        opcode, length = data[position] & 0x0F, data[position + 1]
        position += 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        if position + length > len(data):
            break
        frames.append((opcode, data[position : position + length]))
        position += length
    return frames
