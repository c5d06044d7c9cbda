"""What the tests of the video socket share: a client that keeps what it got, and what can be read from it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import av
from over_socket import WAIT_S
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from streamsynth.testing.paint import Painted, read_picture

VIDEO = "/v1/realtime/video"
SMALL: dict[str, Any] = {"width": 128, "height": 128}
Message = dict[str, Any]


class VideoClient:
    """Reads messages; each metadata has its payload under "data". Every wait has an end."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self.messages: list[Message] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.websocket.send(json.dumps({"type": kind, **fields}))

    async def steer(self, event_id: str, prompt: str = "blue", **fields: Any) -> None:
        interaction = {"event_id": event_id, "event": {"prompt": prompt}, **fields}
        await self.send("session.interaction", interaction=interaction)

    async def next(self) -> Message:
        async with asyncio.timeout(WAIT_S):
            message: Message = json.loads(await self.websocket.recv())
            if message["type"] == "video.chunk_metadata":
                message["data"] = await self.websocket.recv()
                assert isinstance(message["data"], bytes) and len(message["data"]) == message["byte_length"]
        self.messages.append(message)
        return message

    async def until(self, reached: Callable[[Message], bool]) -> Message:
        while not reached(message := await self.next()):
            pass
        return message

    async def until_type(self, kind: str) -> Message:
        return await self.until(lambda message: message["type"] == kind)

    async def until_chunk(self, number: int) -> Message:
        return await self.until(lambda message: message.get("generation_chunk_index") == number and "data" in message)

    async def closed(self) -> tuple[int, str]:
        try:
            while True:
                await self.next()
        except ConnectionClosed as closing:
            frame = closing.rcvd
            return (frame.code, frame.reason) if frame else (1006, "")

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.messages if message["type"] == kind]

    def file(self) -> bytes:
        return b"".join(message["data"] for message in self.of("video.chunk_metadata"))

    def pictures(self) -> list[Painted]:
        with av.open(io.BytesIO(self.file())) as container:
            return [read_picture(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


@asynccontextmanager
async def watching(url: str, *, started: bool = True, **fields: Any) -> AsyncIterator[VideoClient]:
    """A video of prompt "red" that has been asked for, unless not `started`."""
    async with connect(
        url.replace("http", "ws", 1) + VIDEO, compression=None, max_size=1 << 20, open_timeout=WAIT_S, close_timeout=2
    ) as websocket:
        client = VideoClient(websocket)
        if started:
            await client.send("session.start", **{"prompt": "red", **SMALL, **fields})
        yield client
