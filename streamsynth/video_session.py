"""A video as a program sees it: the same over a socket and over the models of this process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from streamsynth.graph.edge import EndOfEdge
from streamsynth.interactions.events import check_prompt
from streamsynth.interactions.messages import Applied, Kv, Mode, Superseded
from streamsynth.realtime.interaction_ledger import REMEMBERED_EVENTS
from streamsynth.video import VideoChunk

Receipt: TypeAlias = Applied | Superseded


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoConfig:
    """What is being made. `seed` makes it again."""

    model: str
    width: int
    height: int
    fps: int
    chunk_frames: int
    seed: int


class VideoSource(Protocol):
    """Where a video comes from. Only `open`, `receive` and `close` wait."""

    async def open(self, fields: Mapping[str, object]) -> VideoConfig:
        """Begin; raises StreamSynthError and leaves nothing open."""

    async def receive(self) -> VideoChunk:
        """The next chunk; raises EndOfEdge after the final one, else what ended the video. Cancelled, it took
        nothing."""

    def interact(self, fields: Mapping[str, object]) -> asyncio.Future[Receipt]:
        """Raises StreamSynthError for what cannot be asked; the future fails with what the model refuses."""

    def stop(self) -> None: ...

    async def close(self) -> None:
        """Cancel and let go of everything. Idempotent."""


class VideoSession(AsyncIterator[VideoChunk]):
    """One video, made while it is read. An async context manager: leaving it cancels what is unfinished.

    Iterate over it for its chunks; the last one is `final`. Who does not read stops the model. Use from one event loop.
    """

    def __init__(
        self,
        source: VideoSource,
        fields: Mapping[str, object],
        on_closed: Callable[[VideoSession], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self._on_closed = on_closed
        self._config: VideoConfig | None = None
        self._over = False

    @property
    def config(self) -> VideoConfig:
        """What is being made, once the session was entered."""
        self._check_entered()
        assert self._config is not None
        return self._config

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """What entering does: raises StreamSynthError for settings or a server that will not do."""
        if self._config is not None:
            raise RuntimeError("a video session can be entered once")
        try:
            for name in self._fields.keys() & {"prompt", "negative_prompt"}:
                check_prompt(self._fields[name], name)  # What no JSON can carry is refused here, by its name.
            self._config = await self._source.open(self._fields)
        except BaseException:
            self._on_closed(self)
            raise

    async def close(self) -> None:
        """What leaving does. Idempotent."""
        try:
            await self._source.close()
        finally:
            self._on_closed(self)

    def interact(
        self,
        prompt: str | None = None,
        *,
        event_id: str | None = None,
        transition_chunks: int | None = None,
        mode: Mode | str | None = None,
        kv: Kv | str | None = None,
        **event: Any,
    ) -> asyncio.Future[Receipt]:
        """Steer the video from its next chunk on: the prompt, and what else the model offers (`seed`).

        Takes effect without being awaited; awaited, it says where (`Applied`) or why not (`Superseded`), or raises what
        the model refuses. That comes only while the video is read. Raises StreamSynthError for what cannot be asked.
        """
        self._check_entered()
        asked = {"event_id": event_id, "transition_chunks": transition_chunks, "mode": mode, "kv": kv}
        if prompt is not None:
            event = {"prompt": prompt, **event}
        given = {name: value for name, value in asked.items() if value is not None}
        receipt = self._source.interact({"event": event, **given})
        # Nobody has to ask what became of it.
        receipt.add_done_callback(lambda future: future.cancelled() or future.exception())
        return receipt

    def stop(self) -> None:
        """Begin no further chunk: what is made still comes, then the end. Idempotent."""
        self._check_entered()
        self._source.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> VideoChunk:
        """Cancelled, it loses nothing: the next one goes on."""
        self._check_entered()
        if self._over:
            raise StopAsyncIteration
        try:
            chunk = await self._source.receive()
        except EndOfEdge:
            self._over = True
            raise StopAsyncIteration from None
        self._over = chunk.final
        return chunk

    def _check_entered(self) -> None:
        if self._config is None:
            raise RuntimeError("enter the video session first: async with synth.video_session(prompt) as video")


class Receipts:
    """The futures of a session's interactions, by event id. What became of the latest is told again to a retry."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Receipt]] = {}
        self._settled: OrderedDict[str, asyncio.Future[Receipt]] = OrderedDict()

    def open(self, event_id: str) -> asyncio.Future[Receipt]:
        """The one that there is for this id already, or a new one."""
        known = self._settled.get(event_id) or self._waiting.get(event_id)
        if known is None or known.cancelled():
            known = self._waiting[event_id] = asyncio.get_running_loop().create_future()
        return known

    def settle(self, event_id: str, receipt: Receipt | Exception) -> None:
        """Does nothing for one that has been settled: what is superseded later was applied before."""
        future = self._waiting.pop(event_id, None)
        if future is None or future.done():
            return
        if isinstance(receipt, Exception):
            future.set_exception(receipt)
        else:
            future.set_result(receipt)
        self._settled[event_id] = future
        if len(self._settled) > REMEMBERED_EVENTS:
            self._settled.popitem(last=False)

    def forget(self, event_id: str, error: Exception) -> None:
        """Settle it as something that was never accepted: its id can be used anew."""
        self.settle(event_id, error)
        self._settled.pop(event_id, None)

    def end(self) -> None:
        """The video is over: what waits is superseded by nothing."""
        for event_id in list(self._waiting):
            self.settle(event_id, Superseded(event_id, None))
