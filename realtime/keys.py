"""The typed places in the aiohttp application, and in each request, where handlers find what they share."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from streamsynth.observe.metrics import Metrics
from streamsynth.realtime.admission import Admission
from streamsynth.realtime.auth import Auth, Caller
from streamsynth.realtime.draining import Draining
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.video_jobs import VideoJobs
from streamsynth.runtime import Runtime

RUNTIME = web.AppKey("runtime", Runtime)
LIMITS = web.AppKey("limits", Limits)
MODEL_LIMITS = web.AppKey("model_limits", Mapping[str, Mapping[str, float]])
"""By model: what its deployment sets, as published."""
AUTH = web.AppKey("auth", Auth)
ADMISSION = web.AppKey("admission", Admission)
METRICS = web.AppKey("metrics", Metrics)
JOBS = web.AppKey("jobs", VideoJobs)
"""Absent where no model makes pictures."""
DRAINING = web.AppKey("draining", Draining)
OPEN_PATHS = web.AppKey("open_paths", frozenset[str])
"""Paths that need no key: liveness, readiness and the page, which has to load before it can ask for one."""

CALLER = web.RequestKey("caller", Caller)
"""Set before every handler but those of the open routes."""
REQUEST_ID = web.RequestKey("request_id", str)
"""Set before every handler, and sent as X-Request-Id."""
ROUTE = web.RequestKey("route", str)
"""The path as it was registered; absent for a request that was not understood."""
