"""The aiohttp application: which path is answered by whom, and what the handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

from aiohttp import web

from streamsynth.config.deployment import Deployment
from streamsynth.observe.loop_lag import probe_loop_lag
from streamsynth.observe.metrics import Metrics
from streamsynth.realtime import listings
from streamsynth.realtime.admission import Admission
from streamsynth.realtime.auth import Auth
from streamsynth.realtime.draining import Draining
from streamsynth.realtime.gate import add_headers, expect, gate
from streamsynth.realtime.keys import ADMISSION, AUTH, DRAINING, LIMITS, METRICS, MODEL_LIMITS, OPEN_PATHS, RUNTIME
from streamsynth.realtime.limits import model_limits
from streamsynth.realtime.page import PageFile, serve_file
from streamsynth.realtime.settings import ServerSettings
from streamsynth.realtime.speech_http import create_speech
from streamsynth.realtime.speech_socket import speech_socket
from streamsynth.realtime.video_socket import video_socket
from streamsynth.runtime import Runtime
from streamsynth.workers.stage import StageStatistics

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
    """Everything but the sockets and the workers: `runtime` is the caller's to start and stop."""
    app = web.Application(middlewares=[gate], client_max_size=settings.limits.body_bytes)
    app[RUNTIME] = runtime
    app[LIMITS] = settings.limits
    app[MODEL_LIMITS] = {each.pipeline.name: model_limits(each) for each in deployments}
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
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(_probe)
    _watch(app[METRICS], app[ADMISSION], runtime)
    return app


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
