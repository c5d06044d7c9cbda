"""The server's Prometheus metrics, in a registry of their own: one named method for each thing that happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamsynth.errors import ErrorCode
from streamsynth.observe.ideal_player import IdealPlayer
from streamsynth.observe.job_metrics import JobMetrics
from streamsynth.observe.video_metrics import VideoMetrics

# It would add a series to each counter, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus-client leaves it unannotated

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)
_UNDERRUNS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # 0.05, 0.1 and 0.2 are C50, C100 and C200
_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_LEADS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20)


class Surface(StrEnum):
    """Through which door an utterance came."""

    HTTP = "http"
    SOCKET = "socket"


class Metrics:
    """Collectors and what feeds them. Cheap enough for the event loop; not to be shared between threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.video = VideoMetrics(self.registry)
        self.jobs = JobMetrics(self.registry)
        door = ("surface", "model")
        self._utterances = self._counter("utterances", "Utterances by how they ended.", (*door, "status"))
        self._audio = self._counter("audio_seconds", "Seconds of speech accepted by sockets.", door)
        self._refused = self._counter("refused", "What ended in an error, by code.", ("code",))
        self._ttfa = self._histogram(
            "ttfa_seconds", "First text to first audio accepted by the socket.", _LATENCIES, door
        )
        self._underrun = self._histogram(
            "worst_underrun_seconds",
            "Worst lateness of a chunk, for a player that starts at the first.",
            _UNDERRUNS,
            door,
        )
        self._to_ack = self._histogram(
            "cancel_to_ack_seconds", "A cancel's arrival to its acknowledgement.", _LATENCIES
        )
        self._to_idle = self._histogram("cancel_to_idle_seconds", "A cancel to the end of its work.", _LATENCIES)
        self._lead = self._histogram("lead_seconds", "Media generated but not yet accepted by the transport.", _LEADS)
        self._lag = self._histogram("loop_lag_seconds", "Lateness of the event loop's timers.", _LAGS)

    def utterance_started(self, surface: Surface, model: str, sample_rate: int, started_s: float) -> UtteranceMeter:
        """`started_s` is when the request, or the first text, came; on the clock that the meter is then given."""
        return UtteranceMeter(self, surface, model, IdealPlayer(sample_rate), started_s)

    def utterance_ended(
        self, surface: Surface, model: str, status: str, played: IdealPlayer, ttfa_s: float | None
    ) -> None:
        """For UtteranceMeter. An utterance that sent no audio counts, but has no latency and no underrun."""
        self._utterances.labels(surface.value, model, status).inc()
        if ttfa_s is not None:
            self._audio.labels(surface.value, model).inc(played.media_s)
            self._ttfa.labels(surface.value, model).observe(ttfa_s)
            self._underrun.labels(surface.value, model).observe(played.worst_underrun_s)

    def refused(self, code: ErrorCode) -> None:
        self._refused.labels(code.value).inc()

    def cancel_acknowledged(self, seconds: float) -> None:
        self._to_ack.observe(seconds)

    def cancel_idle(self, seconds: float) -> None:
        self._to_idle.observe(seconds)

    def lead(self, seconds: float) -> None:
        self._lead.observe(seconds)

    def loop_lagged(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def watch_gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """A gauge whose value is read whenever somebody asks."""
        Gauge(f"streamsynth_{name}", description, registry=self.registry).set_function(read)

    def watch_counter(self, name: str, description: str, read: Callable[[], float]) -> None:
        """A counter that somebody else keeps, read whenever somebody asks."""
        self.registry.register(_Watched(f"streamsynth_{name}", description, read))

    def watch_engines(self, read: Callable[[], Iterable[tuple[str, Mapping[str, int]]]]) -> None:
        """What the engines count themselves, by stage: read whenever somebody asks."""
        self.registry.register(_Engines(read))

    def render(self) -> bytes:
        """The text exposition format, of CONTENT_TYPE."""
        return generate_latest(self.registry)

    def _counter(self, name: str, description: str, labels: Iterable[str]) -> Counter:
        return Counter(f"streamsynth_{name}", description, labels, registry=self.registry)

    def _histogram(
        self, name: str, description: str, buckets: tuple[float, ...], labels: Iterable[str] = ()
    ) -> Histogram:
        return Histogram(f"streamsynth_{name}", description, labels, buckets=buckets, registry=self.registry)


class UtteranceMeter:
    """One utterance on its way to a listener: hears of each piece that the transport accepted, and of the end."""

    def __init__(self, metrics: Metrics, surface: Surface, model: str, player: IdealPlayer, started_s: float) -> None:
        self._metrics = metrics
        self._surface = surface
        self._model = model
        self._started_s = started_s
        self._played = player
        self._ended = False
        self.ttfa_s: float | None = None

    @property
    def worst_underrun_s(self) -> float:
        return self._played.worst_underrun_s

    def sent(self, samples: int, now_s: float) -> None:
        """That many samples of audio were accepted at `now_s`; a header has none."""
        if samples > 0:
            if self.ttfa_s is None:
                self.ttfa_s = now_s - self._started_s
            self._played.received(samples, now_s)

    def ended(self, status: str) -> None:
        """`status` is completed, cancelled or failed; only the first call counts."""
        if not self._ended:
            self._ended = True
            self._metrics.utterance_ended(self._surface, self._model, status, self._played, self.ttfa_s)


class _Watched(Collector):
    def __init__(self, name: str, description: str, read: Callable[[], float]) -> None:
        self._name = name
        self._description = description
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._description, value=self._read())


class _Engines(Collector):
    def __init__(self, read: Callable[[], Iterable[tuple[str, Mapping[str, int]]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "streamsynth_engine",
            "What the engines of the workers that run now count, as of their last heartbeat.",
            labels=("stage", "counter"),
        )
        for stage, counters in self._read():
            for name, value in counters.items():
                family.add_metric((stage, name), value)
        yield family
