"""The aiohttp application: which path is answered by whom, and what the handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from aiohttp import web

from streamsynth.config.deployment import Deployment
from streamsynth.environment import state_folder
from streamsynth.observe.loop_lag import probe_loop_lag
from streamsynth.observe.metrics import Metrics
from streamsynth.realtime import listings, videos_http
from streamsynth.realtime.admission import Admission
from streamsynth.realtime.auth import Auth
from streamsynth.realtime.draining import Draining
from streamsynth.realtime.gate import add_headers, expect, gate
from streamsynth.realtime.images_http import create_images
from streamsynth.realtime.job_folder import JobFolder
from streamsynth.realtime.job_maker import JobMaker
from streamsynth.realtime.keys import (
    ADMISSION,
    AUTH,
    DRAINING,
    JOBS,
    LIMITS,
    METRICS,
    MODEL_LIMITS,
    OPEN_PATHS,
    RUNTIME,
)
from streamsynth.realtime.limits import model_limits
from streamsynth.realtime.page import PageFile, serve_file
from streamsynth.realtime.settings import ServerSettings
from streamsynth.realtime.speech_http import create_speech
from streamsynth.realtime.speech_socket import speech_socket
from streamsynth.realtime.sync_video_http import sync_video
from streamsynth.realtime.video_job import JobStatus
from streamsynth.realtime.video_jobs import VideoJobs
from streamsynth.realtime.video_socket import video_socket
from streamsynth.runtime import Runtime
from streamsynth.workers.stage import StageStatistics
from streamsynth.workers.wire import Beat

_PROBES = ("/health", "/ready")

_STAGE_COUNTERS: tuple[tuple[str, str, Callable[[StageStatistics], float]], ...] = (
    ("dropped_stale_replies", "Worker replies that came too late.", lambda stage: stage.stale_replies),
    ("credit_wait_seconds", "Seconds that generation waited for its readers.", lambda stage: stage.credit_wait_s),
    ("worker_restarts", "Workers started again after a death.", lambda stage: stage.restarts),
    ("worker_steps", "Steps of the workers that run now.", lambda stage: stage.beat.steps if stage.beat else 0),
)


def build_app(
    runtime: Runtime,
    deployments: Sequence[Deployment],
    settings: ServerSettings,
    draining: Draining,
    page: Mapping[str, PageFile],
) -> web.Application:
    """Everything but the sockets and the workers: `runtime` is started, and the caller's to stop."""
    app = web.Application(middlewares=[gate], client_max_size=settings.limits.body_bytes)
    app[RUNTIME] = runtime
    app[LIMITS] = settings.limits
    named = {each.pipeline.name: each for each in deployments}
    app[MODEL_LIMITS] = {name: model_limits(each, runtime.models[name].traits) for name, each in named.items()}
    app[AUTH] = Auth(settings)
    app[ADMISSION] = Admission(settings.limits, shared=len(settings.api_keys) > 1)
    app[DRAINING] = draining
    app[METRICS] = Metrics()
    app[OPEN_PATHS] = frozenset({*_PROBES, *page})
    app.add_routes(
        [
            web.post("/v1/audio/speech", create_speech, expect_handler=expect),
            web.get("/v1/audio/speech/stream", speech_socket, allow_head=False),
            web.get("/v1/realtime/video", video_socket, allow_head=False),
            web.post("/v1/videos", videos_http.create_video, expect_handler=expect),
            web.get("/v1/videos", videos_http.list_videos),
            web.post("/v1/videos/sync", sync_video, expect_handler=expect),
            web.get("/v1/videos/{video_id}", videos_http.show_video),
            web.delete("/v1/videos/{video_id}", videos_http.delete_video),
            web.get("/v1/videos/{video_id}/content", videos_http.video_content),
            web.post("/v1/images/generations", create_images, expect_handler=expect),
            web.get("/v1/audio/voices", listings.list_voices),
            web.get("/v1/models", listings.list_models),
            web.get("/v1/models/{model}", listings.show_model),
            web.get("/v1/limits", listings.show_limits),
            web.get("/health", listings.health),
            web.get("/ready", listings.ready),
            web.get("/metrics", listings.metrics),
            *(web.get(path, serve_file(file)) for path, file in page.items()),
        ]
    )
    if runtime.video_models:
        app[JOBS] = _video_jobs(app, settings)
        app.cleanup_ctx.append(_keep_jobs)
        _watch_jobs(app[METRICS], app[JOBS])
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(_probe)
    _watch(app[METRICS], app[ADMISSION], runtime)
    return app


def _video_jobs(app: web.Application, settings: ServerSettings) -> VideoJobs:
    limits, metrics, admission = app[LIMITS], app[METRICS].jobs, app[ADMISSION]
    places = {name: int(app[MODEL_LIMITS][name]["running_videos"]) for name in app[RUNTIME].video_models}
    maker = JobMaker(app[RUNTIME], admission, metrics, limits, places)
    return VideoJobs(JobFolder(_jobs_path(settings)), maker, admission, app[DRAINING], metrics, limits)


def _jobs_path(settings: ServerSettings) -> Path | None:
    if settings.data is not None:
        return settings.data
    return state_folder() / "streamsynth" / f"videos-{settings.port}" if settings.port else None


async def _keep_jobs(app: web.Application) -> AsyncIterator[None]:
    await app[JOBS].open()
    yield
    await app[JOBS].close()


async def _probe(app: web.Application) -> AsyncIterator[None]:
    probe = asyncio.create_task(probe_loop_lag(app[METRICS].loop_lagged), name="loop lag probe")
    yield
    probe.cancel()
    await asyncio.wait([probe])


def _watch(metrics: Metrics, admission: Admission, runtime: Runtime) -> None:
    """What others count already is read when somebody asks."""

    def total(read: Callable[[StageStatistics], float]) -> float:
        return sum(read(stage) for stage in runtime.statistics().stages.values())

    def queued() -> float:
        return admission.queued + total(lambda stage: stage.queued)

    metrics.watch_gauge("sessions", "Open sockets.", lambda: admission.sessions)
    metrics.watch_gauge("running", "Utterances and videos that hold a place.", lambda: admission.running)
    metrics.watch_gauge("queued", "Utterances and videos that wait for a place or for a worker.", queued)
    metrics.watch_gauge(
        "live_flows", "Utterances and videos that are being made.", lambda: runtime.statistics().live_flows
    )
    for name, description, read in _STAGE_COUNTERS:
        metrics.watch_counter(name, description, partial(total, read))
    metrics.watch_engines(
        lambda: [
            (name, {**stage.beat.counters, **_costs(stage.beat)})
            for name, stage in runtime.statistics().stages.items()
            if stage.beat
        ]
    )


def _costs(beat: Beat) -> dict[str, int]:
    """By which the stage's slots decide who may enter."""
    return {"cost_shared_us": round(1e6 * beat.cost_shared), "cost_each_us": round(1e6 * beat.cost_each)}


def _watch_jobs(metrics: Metrics, jobs: VideoJobs) -> None:
    for status in (JobStatus.QUEUED, JobStatus.IN_PROGRESS):
        name = f"video_jobs_{status.value}"
        metrics.watch_gauge(name, f"Jobs of /v1/videos that are {status.value}.", partial(jobs.count, status))
    metrics.watch_gauge("stored_videos", "Jobs of /v1/videos that are kept, of every status.", jobs.total)
    metrics.watch_gauge("stored_video_bytes", "Their files, growing ones included.", jobs.nbytes)
