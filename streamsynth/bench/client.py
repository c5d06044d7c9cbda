"""The load client of the speech socket: it parses every frame, times what a listener hears, and checks the totals.

One utterance at a time; pcm as it is made. Nothing here reads ahead of what the server sent (a client that fills a
buffer of its own measures that).
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from streamsynth.remote_socket import socket_url
from streamsynth.testing.viewer import Viewer

_CONFIG: Mapping[str, object] = {"response_format": "pcm", "stream_audio": True}


class WrongTotal(Exception):
    """What the server counted is not what arrived."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """One utterance as its listener heard it. Times in nanoseconds from the first text.

    `ttfa_ns` is when the first audio came, `first_payload_ns` the length of that audio, `audible_ns` when a player that
    starts there plays its first sound. `frames_after_ack` counts what should not have come.
    """

    status: str
    error: str | None = None
    ttfa_ns: int | None = None
    first_payload_ns: int = 0
    audible_ns: int | None = None
    underrun_ns: int = 0
    lateness_ns: tuple[int, ...] = ()
    ended_ns: int = 0
    audio_ns: int = 0
    samples: int = 0
    cancel_to_ack_ns: int | None = None
    frames_after_ack: int = 0

    @property
    def completed(self) -> bool:
        return self.status == "completed"

    @property
    def rtf(self) -> float:
        """The time from the first text to the last audio, over the length of the audio."""
        return self.ended_ns / self.audio_ns


@dataclass(slots=True)
class _Hearing:
    began_ns: int
    viewer: Viewer | None = None
    last_audio_ns: int = 0
    container_bytes: int = 0
    samples: int = 0
    asked_ns: int | None = None
    acked_ns: int | None = None
    frames_after_ack: int = 0
    error: str | None = None
    sample_rate: int = 1

    def audio(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if self.acked_ns is not None:
            self.frames_after_ack += 1
        samples = np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
        self.container_bytes += len(data)
        self.samples += len(samples)
        if self.viewer is None:
            self.viewer = Viewer(self.sample_rate)
        self.viewer.receive(now_ns, samples)
        self.last_audio_ns = now_ns

    def heard(self, status: str) -> Heard:
        viewer = self.viewer
        if viewer is None or viewer.started_ns is None:
            return Heard(
                status=status, error=self.error, cancel_to_ack_ns=self._to_ack(), frames_after_ack=self.frames_after_ack
            )
        audible_ns = viewer.audible_ns
        return Heard(
            status=status,
            error=self.error,
            ttfa_ns=viewer.started_ns - self.began_ns,
            first_payload_ns=viewer.first_samples * 1_000_000_000 // viewer.sample_rate,
            audible_ns=None if audible_ns is None else audible_ns - self.began_ns,
            underrun_ns=viewer.worst_lateness_ns,
            lateness_ns=tuple(viewer.lateness_ns),
            ended_ns=self.last_audio_ns - self.began_ns,
            audio_ns=viewer.samples * 1_000_000_000 // viewer.sample_rate,
            samples=viewer.samples,
            cancel_to_ack_ns=self._to_ack(),
            frames_after_ack=self.frames_after_ack,
        )

    def _to_ack(self) -> int | None:
        if self.asked_ns is None or self.acked_ns is None:
            return None
        return self.acked_ns - self.asked_ns


class SpeechClient:
    """One connection. An async context manager; use it from one task, `cancel` from any."""

    def __init__(
        self, url: str, *, api_key: str | None = None, config: Mapping[str, object], receive_buffer: int | None = None
    ) -> None:
        self._url = socket_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else None
        self._config = {**_CONFIG, **config}
        self._receive_buffer = receive_buffer
        self._hearing: _Hearing | None = None
        self.socket: ClientConnection

    async def __aenter__(self) -> Self:
        self.socket = await connect(
            self._url,
            additional_headers=self._headers,
            compression=None,
            ping_interval=None,
            proxy=None,
            max_queue=1 if self._receive_buffer else 16,
            close_timeout=1,
            sock=self._small_socket() if self._receive_buffer else None,
        )
        await self._send("session.config", **self._config)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.transport.abort()
        await self.socket.wait_closed()

    async def speak(self, *pieces: str) -> Heard:
        """Send the text, listen to the end. Raises WrongTotal if the server's counts are not what came."""
        await self.begin(*pieces)
        return await self.listen()

    async def begin(self, *pieces: str) -> None:
        """Send the text and its flush, without listening."""
        self._hearing = _Hearing(time.monotonic_ns())
        for piece in pieces:
            await self._send("input.text", text=piece)
        await self._send("input.done")

    async def cancel(self) -> None:
        if self._hearing is not None and self._hearing.asked_ns is None:
            self._hearing.asked_ns = time.monotonic_ns()
            await self._send("input.cancel")

    async def listen(self) -> Heard:
        hearing = self._hearing
        assert hearing is not None, "begin first"
        try:
            async for message in self.socket:
                if isinstance(message, bytes):
                    hearing.audio(message)
                elif (heard := self._take(hearing, json.loads(message))) is not None:
                    return heard
            closed = f"closed: {self.socket.close_code} {self.socket.close_reason}"
        except ConnectionClosed as error:
            closed = f"closed: {error}"
        hearing.error = hearing.error or closed
        return hearing.heard("failed")

    async def frames_until_quiet(self) -> int:
        """After a cancel's ack: binary frames that come before the answer to a ping. There should be none."""
        frames = 0
        await self._send("session.ping")
        async for message in self.socket:
            if isinstance(message, bytes):
                frames += 1
            elif json.loads(message)["type"] == "session.pong":
                break
        return frames

    def _take(self, hearing: _Hearing, event: dict[str, Any]) -> Heard | None:
        match event["type"]:
            case "audio.start":
                hearing.container_bytes, hearing.sample_rate = 0, event["sample_rate"]
            case "audio.done":
                _check("bytes", event["total_bytes"], hearing.container_bytes)
            case "input.cancelled":
                hearing.acked_ns = time.monotonic_ns()
            case "error":
                hearing.error = f"{event['code']}: {event['message']}"
            case "session.done":
                if event["status"] == "completed":
                    _check("samples", event["total_samples"], hearing.samples)
                return hearing.heard(event["status"])
        return None

    async def _send(self, kind: str, **fields: object) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    def _small_socket(self) -> socket.socket:
        """A connected socket whose kernel buffer takes next to nothing, as a reader that stalls should."""
        parts = urlsplit(self._url)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer or 0)
        sock.connect((parts.hostname, parts.port))
        sock.setblocking(False)
        return sock


def _check(what: str, said: int, came: int) -> None:
    if said != came:
        raise WrongTotal(f"the server counted {said} {what}, {came} arrived")
