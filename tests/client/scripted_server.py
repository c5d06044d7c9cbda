"""A WebSocket server that says what a test tells it to, and keeps what it was told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

Script = Callable[["Scripted"], Awaitable[None]]


class Scripted:
    """One connection, seen from the server."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.received: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        message = json.loads(await self.socket.recv())
        self.received.append(message)
        assert isinstance(message, dict)
        return message

    async def receive_until(self, kind: str) -> dict[str, Any]:
        while (message := await self.receive())["type"] != kind:
            pass
        return message

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def send_audio(self, data: bytes) -> None:
        await self.socket.send(data)

    async def start(self, *, utterance: int = 0, audio_format: str = "pcm", sample_rate: int = 24_000) -> None:
        await self.send(
            "audio.start",
            utterance_index=utterance,
            sentence_index=0,
            sentence_text="a text",
            format=audio_format,
            sample_rate=sample_rate,
            channels=1,
            request_id="r-1",
        )

    async def done(self, samples: int, *, utterance: int = 0, status: str = "completed") -> None:
        await self.send(
            "audio.done",
            utterance_index=utterance,
            sentence_index=0,
            total_bytes=2 * samples,
            total_samples=samples,
            error=False,
        )
        await self.session_done(samples, utterance=utterance, status=status)

    async def session_done(self, samples: int, *, utterance: int = 0, status: str = "completed") -> None:
        await self.send(
            "session.done", utterance_index=utterance, total_sentences=1, status=status, total_samples=samples
        )

    async def configure(self, **limits: float) -> None:
        """Answer the first message as StreamSynth does."""
        await self.receive_until("session.config")
        config = {
            "model": "m",
            "voice": "v",
            "response_format": "pcm",
            "sample_rate": 24_000,
            "speed": 1.0,
            "seed": None,
            "max_new_tokens": None,
            "options": {},
            "split_granularity": "sentence",
            "stream_audio": True,
            "close_on_done": False,
        }
        await self.send("session.configured", config=config, ignored=[], limits=limits)


@contextlib.asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[tuple[str, list[Scripted]]]:
    """Its URL (http), and the connections it had. A connection ends with the script, or when the client leaves."""
    connections: list[Scripted] = []

    async def handle(socket: ServerConnection) -> None:
        connection = Scripted(socket)
        connections.append(connection)
        await script(connection)

    async with serve(handle, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}", connections
