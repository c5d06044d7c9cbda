"""The metrics of videos: how they end, when their pictures come, how soon steering shows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from streamsynth.observe.ideal_player import IdealPlayer

_LATENCIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
_UNDERRUNS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class VideoMetrics:
    """Collectors of one registry. For the event loop; not to be shared between threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, description: str, buckets: tuple[float, ...] = _LATENCIES) -> Histogram:
            return Histogram(f"streamsynth_{name}", description, ("model",), buckets=buckets, registry=registry)

        def counter(name: str, description: str, *labels: str) -> Counter:
            return Counter(f"streamsynth_{name}", description, ("model", *labels), registry=registry)

        self.videos = counter("videos", "Videos by how they ended.", "status")
        self.pictures = counter("pictures", "Pictures accepted by sockets.")
        self.dropped = counter("pictures_dropped", "Pictures made and not sent, for viewers that asked for that.")
        self.first = histogram("first_picture_seconds", "session.start to the first pictures accepted by the socket.")
        self.underrun = histogram(
            "video_worst_underrun_seconds", "Worst lateness of a chunk, for a player that starts at once.", _UNDERRUNS
        )
        self.applied = histogram("interaction_to_applied_seconds", "An interaction to the chunk that it first affects.")
        self.delivered = histogram(
            "interaction_to_delivered_seconds", "An interaction to its first pictures accepted by the socket."
        )

    def started(self, model: str, fps: int, now_s: float) -> VideoMeter:
        """`now_s` is when the request came; on the clock that the meter is then given."""
        return VideoMeter(self, model, IdealPlayer(fps), now_s)


class VideoMeter:
    """One video on its way to a viewer."""

    def __init__(self, metrics: VideoMetrics, model: str, player: IdealPlayer, started_s: float) -> None:
        self._metrics = metrics
        self._model = model
        self._played = player
        self._started_s = started_s
        self._begun = False
        self._ended = False

    def sent(self, frames: int, now_s: float) -> None:
        """That many pictures were accepted at `now_s`; a header has none."""
        if frames == 0:
            return
        if not self._begun:
            self._begun = True
            self._metrics.first.labels(self._model).observe(now_s - self._started_s)
        self._metrics.pictures.labels(self._model).inc(frames)
        self._played.received(frames, now_s)

    def applied(self, seconds: float) -> None:
        self._metrics.applied.labels(self._model).observe(seconds)

    def delivered(self, seconds: float) -> None:
        self._metrics.delivered.labels(self._model).observe(seconds)

    def dropped(self, frames: int) -> None:
        self._metrics.dropped.labels(self._model).inc(frames)

    def ended(self, status: str) -> None:
        """`status` is completed, cancelled or failed; only the first call counts."""
        if not self._ended:
            self._ended = True
            self._metrics.videos.labels(self._model, status).inc()
            if self._begun:
                self._metrics.underrun.labels(self._model).observe(self._played.worst_underrun_s)
