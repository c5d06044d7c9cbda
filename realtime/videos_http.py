"""`/v1/videos`: OpenAI's routes for clips that are made by jobs, and `/v1/videos/sync`, which waits for one."""

from __future__ import annotations

import logging

from aiohttp import web

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.realtime.clip_fields import ClipSettings, parse_clip_fields, whole_number
from streamsynth.realtime.file_answer import send_file
from streamsynth.realtime.form_body import read_fields
from streamsynth.realtime.keys import CALLER, JOBS, LIMITS, REQUEST_ID, RUNTIME
from streamsynth.realtime.video_jobs import VideoJobs

logger = logging.getLogger(__name__)

_MOST_LISTED = 100
_DEFAULT_LISTED = 20
_POLL_MS = 500
_VARIANTS = {"video": "video/mp4", "thumbnail": "image/jpeg"}


async def create_video(request: web.Request) -> web.Response:
    """A job, on disk and in the queue when this answers."""
    jobs = _jobs(request)
    settings = await read_settings(request)
    job = await jobs.create(request[CALLER], settings)
    logger.info("video %s of request %s: model=%s", job["id"], request[REQUEST_ID], settings.model)
    return _answer(job, settings)


async def show_video(request: web.Request) -> web.Response:
    return _answer(_jobs(request).show(request[CALLER], request.match_info["video_id"]))


async def list_videos(request: web.Request) -> web.Response:
    """OpenAI's pages: the newest first unless `order` is asc, those behind `after`."""
    _refuse_queries(request, ("after", "limit", "order"))
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid_value("order", order, "asc or desc")
    limit = whole_number("limit", request.query.get("limit", _DEFAULT_LISTED), 1, _MOST_LISTED)
    jobs, more = _jobs(request).page(
        request[CALLER], after=request.query.get("after"), limit=limit, newest_first=order == "desc"
    )
    return web.json_response(
        {
            "object": "list",
            "data": jobs,
            "first_id": jobs[0]["id"] if jobs else None,
            "last_id": jobs[-1]["id"] if jobs else None,
            "has_more": more,
        },
        headers={"Cache-Control": "no-store"},
    )


async def video_content(request: web.Request) -> web.StreamResponse:
    """The finished file, or a part of it; `variant=thumbnail` is its first picture."""
    _refuse_queries(request, ("variant",))
    variant = request.query.get("variant", "video")
    if variant not in _VARIANTS:
        raise invalid_value("variant", variant, "one of " + ", ".join(_VARIANTS))
    path = _jobs(request).content(request[CALLER], request.match_info["video_id"], variant)
    return await send_file(request, path, _VARIANTS[variant])


async def delete_video(request: web.Request) -> web.Response:
    """A job that runs ends at once; nothing is left of it."""
    video_id = request.match_info["video_id"]
    await _jobs(request).remove(request[CALLER], video_id)
    return web.json_response({"id": video_id, "object": "video.deleted", "deleted": True})


async def read_settings(request: web.Request) -> ClipSettings:
    """What the body asks for."""
    limits = request.app[LIMITS]
    return parse_clip_fields(await read_fields(request, limits), request.app[RUNTIME].video_models, limits)


def _jobs(request: web.Request) -> VideoJobs:
    jobs = request.app.get(JOBS)
    if jobs is None:
        raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, "no model of this server makes video", param="model")
    return jobs


def _answer(job: dict[str, object], settings: ClipSettings | None = None) -> web.Response:
    headers = {"Cache-Control": "no-store", "openai-poll-after-ms": str(_POLL_MS)}
    if settings is not None and settings.ignored:
        headers["X-Ignored-Fields"] = ", ".join(settings.ignored)
    return web.json_response(job, headers=headers)


def _refuse_queries(request: web.Request, known: tuple[str, ...]) -> None:
    for name in request.query:
        if name not in known:
            message = f"this path takes no query but {', '.join(known)}"
            raise StreamSynthError(ErrorCode.UNKNOWN_FIELD, message, param=name[:60])
