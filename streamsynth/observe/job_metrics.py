"""The metrics of `/v1/videos` and `/v1/images/generations`: how they end, and how long they take."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class JobMetrics:
    """Collectors of one registry. For the event loop; not to be shared between threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, description: str) -> Histogram:
            return Histogram(f"streamsynth_{name}", description, ("model",), buckets=_SECONDS, registry=registry)

        def counter(name: str, description: str) -> Counter:
            return Counter(f"streamsynth_{name}", description, ("model", "status"), registry=registry)

        self._jobs = counter("video_jobs", "Jobs of /v1/videos by how they ended.")
        self._images = counter("images", "Requests for images by how they ended.")
        self._waited = histogram("video_job_wait_seconds", "A job's creation to its beginning.")
        self._made = histogram("video_job_seconds", "A job's beginning to its finished file.")

    def job_ended(self, model: str, status: str) -> None:
        """`status` is completed, failed or cancelled."""
        self._jobs.labels(model, status).inc()

    def job_began(self, model: str, waited_s: float) -> None:
        self._waited.labels(model).observe(waited_s)

    def job_completed(self, model: str, seconds: float) -> None:
        self._made.labels(model).observe(seconds)

    def images_ended(self, model: str, status: str) -> None:
        self._images.labels(model, status).inc()
