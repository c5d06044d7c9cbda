"""What the server says of itself at `/metrics`, and what happened between two looks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from streamsynth.bench.target import Target


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by upper bound (the last is infinity), not cumulative."""

    counts: Mapping[float, float]

    @property
    def count(self) -> float:
        return sum(self.counts.values())

    def quantile_bound(self, share: float) -> float:
        """The upper bound of the bucket that holds the quantile: the true value is at most this. NaN if empty."""
        wanted, seen = share * self.count, 0.0
        for bound, count in self.counts.items():
            seen += count
            if seen >= wanted and seen > 0:
                return bound
        return math.nan

    def since(self, before: Histogram) -> Histogram:
        return Histogram({bound: count - before.counts.get(bound, 0.0) for bound, count in self.counts.items()})


@dataclass(frozen=True, slots=True)
class Look:
    """All series at one moment, summed over their labels; names without the prefix. `engine` is what engines count
    themselves, summed over stages."""

    values: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    engine: Mapping[str, float]

    def lag_p99_s(self, before: Look) -> float:
        """An upper bound of the event loop's lag between two looks."""
        return self.histogram("loop_lag_seconds", before).quantile_bound(0.99)

    def histogram(self, name: str, before: Look) -> Histogram:
        nothing = Histogram({})
        return self.histograms.get(name, nothing).since(before.histograms.get(name, nothing))


async def look(at: Target) -> Look:
    headers = {"Authorization": f"Bearer {at.api_key}"} if at.api_key else {}
    url = f"{at.url.rstrip('/')}/metrics"
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as http, http.get(url) as answer:
        return parse(await answer.text())


def parse(text: str) -> Look:
    values: dict[str, float] = {}
    cumulative: dict[str, dict[float, float]] = {}
    engine: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("streamsynth_")
            if name == "engine":
                counter = sample.labels["counter"]
                engine[counter] = engine.get(counter, 0.0) + sample.value
            elif name.endswith("_bucket"):
                buckets = cumulative.setdefault(name.removesuffix("_bucket"), {})
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
            else:
                values[name] = values.get(name, 0.0) + sample.value
    return Look(values, {name: _apart(buckets) for name, buckets in cumulative.items()}, engine)


def _apart(cumulative: Mapping[float, float]) -> Histogram:
    counts: dict[float, float] = {}
    below = 0.0
    for bound in sorted(cumulative):
        counts[bound] = cumulative[bound] - below
        below = cumulative[bound]
    return Histogram(counts)
