"""`POST /v1/images/generations`: OpenAI's route; each image is the last picture of a short clip."""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace

from aiohttp import web

from streamsynth.clip_file import last_picture
from streamsynth.codecs import StillFormat, encode_still
from streamsynth.errors import invalid_value
from streamsynth.graph.flow import first_cause
from streamsynth.realtime.clip_fields import ClipSettings, parse_image_fields, parse_image_format, whole_number
from streamsynth.realtime.fields import INT64_MAX
from streamsynth.realtime.form_body import read_fields
from streamsynth.realtime.http_work import video_flow, work_of
from streamsynth.realtime.keys import DRAINING, LIMITS, METRICS, REQUEST_ID, RUNTIME
from streamsynth.realtime.limits import Limits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    settings: ClipSettings
    count: int
    format: StillFormat


async def create_images(request: web.Request) -> web.Response:
    """All images of the request, or the error of the first that failed."""
    app = request.app
    app[DRAINING].refuse_if_begun()
    fields = await read_fields(request, app[LIMITS])
    settings = parse_image_fields(fields, app[RUNTIME].video_models, app[LIMITS])
    asked = _Asked(settings, _parse_count(fields, app[LIMITS], settings.seed), parse_image_format(fields))
    logger.info("image request %s: model=%s, n=%d", request[REQUEST_ID], settings.model, asked.count)
    status = "failed"
    try:
        with work_of(request):
            files = await _make_all(request, asked)
        status = "completed"
    except (asyncio.CancelledError, ConnectionError):
        status = "cancelled"
        raise
    finally:
        app[METRICS].jobs.images_ended(settings.model, status)
    return await asyncio.to_thread(_answer, asked, files)


def _parse_count(fields: Mapping[str, object], limits: Limits, seed: int) -> int:
    value = fields.get("n")
    count = 1 if value in (None, "") else whole_number("n", value, 1, limits.request_images)
    if seed + count - 1 > INT64_MAX:
        raise invalid_value("seed", seed, f"at most {INT64_MAX - count + 1} where n is {count}: they count up from it")
    return count


async def _make_all(request: web.Request, asked: _Asked) -> list[bytes]:
    """At once, as far as there is room: a model may batch them. Seeds count up from the request's."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_make(request, _seeded(asked.settings, offset), asked.format))
                for offset in range(asked.count)
            ]
    except ExceptionGroup as errors:
        raise first_cause(errors) from errors
    return [task.result() for task in tasks]


async def _make(request: web.Request, settings: ClipSettings, format: StillFormat) -> bytes:  # noqa: A002
    async with video_flow(request, settings) as flow:
        return await asyncio.to_thread(encode_still, await last_picture(flow), format)


def _seeded(settings: ClipSettings, offset: int) -> ClipSettings:
    return replace(settings, request=replace(settings.request, seed=settings.seed + offset))


def _answer(asked: _Asked, files: list[bytes]) -> web.Response:
    request = asked.settings.request
    headers = {"Cache-Control": "no-store", "X-Seed": str(asked.settings.seed)}
    if asked.settings.ignored:
        headers["X-Ignored-Fields"] = ", ".join(asked.settings.ignored)
    return web.json_response(
        {
            "created": int(time.time()),
            "data": [{"b64_json": b64encode(file).decode()} for file in files],
            "output_format": asked.format.value,
            "size": f"{request.width}x{request.height}",
        },
        headers=headers,
    )
