"""`POST /v1/videos/sync`: one clip on one connection, which leaves as it is made; nothing of it is kept."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from streamsynth.codecs import ClipEncoder
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import VideoFlow
from streamsynth.realtime.clip_fields import ClipSettings
from streamsynth.realtime.http_work import video_flow, work_of
from streamsynth.realtime.http_writer import BodyWriter
from streamsynth.realtime.keys import DRAINING, LIMITS, REQUEST_ID
from streamsynth.realtime.videos_http import read_settings

logger = logging.getLogger(__name__)


async def sync_video(request: web.Request) -> web.StreamResponse:
    """The first pictures come before the status. Raises StreamSynthError, also after the first byte."""
    request.app[DRAINING].refuse_if_begun()
    settings = await read_settings(request)
    logger.info("video request %s: model=%s", request[REQUEST_ID], settings.model)
    with work_of(request):
        async with video_flow(request, settings) as flow:
            return await _send(request, settings, flow)


async def _send(request: web.Request, settings: ClipSettings, flow: VideoFlow) -> web.StreamResponse:
    asked = settings.request
    encoder = ClipEncoder(width=asked.width, height=asked.height, fps=settings.fps)
    writer = BodyWriter(request, request.app[LIMITS].write_stall_s)
    final = False
    while not final:
        chunk = await flow.receive()
        final = chunk.final
        if len(chunk.pictures):
            begins = encoder.frames == 0
            data = await asyncio.to_thread(encoder.encode, chunk.pictures)
            if begins:
                await writer.start(_headers(settings))
            await writer.write(data)
    outcome = await asyncio.shield(flow.outcome)
    if outcome.error is not None:
        raise outcome.error
    if encoder.frames != settings.num_frames:
        message = f"the model made {encoder.frames} pictures; {settings.num_frames} were asked for"
        raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
    await writer.write(await asyncio.to_thread(encoder.finish))
    return await writer.end()


def _headers(settings: ClipSettings) -> dict[str, str]:
    headers = {
        "Content-Type": "video/mp4",
        "X-Seed": str(settings.seed),
        "X-Accel-Buffering": "no",
        "Cache-Control": "no-store",
    }
    if settings.ignored:
        headers["X-Ignored-Fields"] = ", ".join(settings.ignored)
    return headers
