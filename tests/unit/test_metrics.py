"""Metrics: the names that are promised, honest numbers, and labels without ids or text."""

from __future__ import annotations

import asyncio
import re

import pytest

from streamsynth.errors import ErrorCode
from streamsynth.observe.ideal_player import IdealPlayer
from streamsynth.observe.loop_lag import probe_loop_lag
from streamsynth.observe.metrics import Metrics, Surface


def rendered(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_an_ideal_player_waits_for_what_is_late_and_counts_the_worst() -> None:
    """S17: continuity is measured, not inferred from averages."""
    player = IdealPlayer(1000)
    for samples, now_s in ((100, 0.0), (100, 0.05), (100, 0.35), (300, 0.36)):
        player.received(samples, now_s)
    assert player.worst_underrun_s == pytest.approx(0.15)
    assert player.media_s == pytest.approx(0.6)


def test_first_audio_is_counted_from_the_request_and_not_from_the_header() -> None:
    metrics = Metrics()
    meter = metrics.utterance_started(Surface.HTTP, "sine", 24_000, started_s=10.0)
    meter.sent(0, 10.1)
    meter.sent(2400, 10.2)
    meter.ended("completed")
    meter.ended("failed")
    values = rendered(metrics)
    labels = '{model="sine",surface="http"}'
    assert meter.ttfa_s == pytest.approx(0.2)
    assert values[f"streamsynth_ttfa_seconds_sum{labels}"] == pytest.approx(0.2)
    assert values[f"streamsynth_audio_seconds_total{labels}"] == pytest.approx(0.1)
    assert values['streamsynth_utterances_total{model="sine",status="completed",surface="http"}'] == 1
    assert not [name for name in values if 'status="failed"' in name]


def test_an_utterance_without_audio_counts_but_has_no_latency() -> None:
    """ME-3, ME-4: counters follow what happened; an empty batch records nothing else."""
    metrics = Metrics()
    metrics.utterance_started(Surface.SOCKET, "sine", 24_000, started_s=0.0).ended("cancelled")
    values = rendered(metrics)
    assert values['streamsynth_utterances_total{model="sine",status="cancelled",surface="socket"}'] == 1
    assert not [name for name in values if name.startswith(("streamsynth_ttfa", "streamsynth_worst")) and "{" in name]


def test_the_promised_metrics_exist() -> None:
    metrics = Metrics()
    metrics.refused(ErrorCode.OVERLOADED)
    for observe in (
        metrics.cancel_acknowledged,
        metrics.cancel_idle,
        metrics.lead,
        metrics.loop_lagged,
    ):
        observe(0.01)
    metrics.watch_gauge("sessions", "Open sessions.", lambda: 3)
    metrics.watch_counter("dropped_stale_replies", "Replies too late.", lambda: 5)
    values = rendered(metrics)
    assert values["streamsynth_sessions"] == 3
    assert values["streamsynth_dropped_stale_replies_total"] == 5
    assert values['streamsynth_refused_total{code="overloaded"}'] == 1
    for name in ("cancel_to_ack", "cancel_to_idle", "lead", "loop_lag"):
        assert values[f"streamsynth_{name}_seconds_count"] == 1


def test_labels_are_few_and_hold_no_ids() -> None:
    metrics = Metrics()
    metrics.utterance_started(Surface.HTTP, "sine", 24_000, 0.0).ended("completed")
    metrics.refused(ErrorCode.INVALID_VALUE)
    names = {name for line in metrics.render().decode().splitlines() for name in re.findall(r'(\w+)="', line)}
    assert names <= {"surface", "model", "status", "code", "le"}


async def test_the_probe_reports_by_how_much_each_sleep_was_too_long() -> None:
    now = [0.0]
    lags: list[float] = []

    async def sleep(seconds: float) -> None:
        if len(lags) == 3:
            raise asyncio.CancelledError
        now[0] += seconds + 0.02

    with pytest.raises(asyncio.CancelledError):
        await probe_loop_lag(lags.append, interval_s=0.05, clock=lambda: now[0], sleep=sleep)
    assert lags == pytest.approx([0.02] * 3)
