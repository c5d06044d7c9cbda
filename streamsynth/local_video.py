"""A video session's way to the models of this process, with the server's rules and error codes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import VideoFlow
from streamsynth.interactions.messages import Notice, Progress, Refused
from streamsynth.realtime.interaction_ledger import InteractionLedger
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.video_fields import parse_video_fields
from streamsynth.realtime.video_messages import parse_interaction
from streamsynth.runtime import Runtime
from streamsynth.video import VideoChunk
from streamsynth.video_session import Receipt, Receipts, VideoConfig


class LocalVideo:
    """A flow of the runtime's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._flow: VideoFlow | None = None
        self._ledger = InteractionLedger()
        self._receipts = Receipts()
        self._over = False

    async def open(self, fields: Mapping[str, object]) -> VideoConfig:
        models = self._runtime.video_models
        limit = Limits().video_message_bytes
        settings = parse_video_fields(fields, models, payload_bytes=limit, loopback=True)
        flow = self._flow = self._runtime.open_video(settings.model, settings.request, self._noticed)
        flow.outcome.add_done_callback(lambda _: self._receipts.end())
        return VideoConfig(
            model=settings.model,
            width=settings.request.width,
            height=settings.request.height,
            fps=settings.fps,
            chunk_frames=settings.chunk_frames,
            seed=flow.seed or 0,
        )

    async def receive(self) -> VideoChunk:
        chunk = await self._opened().receive()
        # The flow's outcome comes a moment later, when its worker has said so.
        self._over = self._over or chunk.final
        return chunk

    def interact(self, fields: Mapping[str, object]) -> asyncio.Future[Receipt]:
        flow = self._opened()
        if self._over or flow.outcome.done():
            raise StreamSynthError(ErrorCode.INTERACTION_NOT_ACTIVE, "the video is over, or was stopped")
        interaction = parse_interaction(fields, f"evt-{secrets.token_hex(8)}")
        new = self._ledger.accept(interaction, 0.0)
        receipt = self._receipts.open(interaction.event_id)
        if new:
            flow.interact(interaction)
        return receipt

    def stop(self) -> None:
        self._over = True
        self._opened().finish()

    async def close(self) -> None:
        if self._flow is not None:
            self._flow.cancel()
            await asyncio.shield(self._flow.outcome)

    def _opened(self) -> VideoFlow:
        if self._flow is None:
            raise RuntimeError("enter the video session first")
        return self._flow

    def _noticed(self, notice: Notice) -> None:
        if isinstance(notice, Progress):
            return
        self._ledger.settle(notice.event_id)
        if isinstance(notice, Refused):
            self._receipts.settle(notice.event_id, StreamSynthError.from_wire(notice.error))
        else:
            self._receipts.settle(notice.event_id, notice)
