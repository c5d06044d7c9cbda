"""The long run of `bench sessions`: does anything grow with the number of utterances, aborts or sessions?"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from streamsynth.bench.client import SpeechClient
from streamsynth.bench.report import Panel, Report, Row
from streamsynth.bench.scrape import look
from streamsynth.bench.statistics import slope
from streamsynth.bench.target import Target, open_descriptors, resident_bytes

WORKERS = 4
SAMPLES = 80
REGISTRIES = ("sessions", "running", "queued", "live_flows")
"""Gauges of what the server holds for its clients: all zero when nobody is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakLoad:
    """`slopes` False: too short to say how memory grows; what must be empty is checked all the same."""

    utterances: int = 2000
    aborts: int = 2000
    sessions: int = 5000
    characters: int = 20
    slopes: bool = True
    seed: int = 1


class SoakFailed(Exception):
    """Something was left behind. The message says what."""


@dataclass(slots=True)
class _Series:
    """Resident memory by process, against how many were done."""

    done: list[int] = field(default_factory=list)
    resident: dict[str, list[int]] = field(default_factory=dict)

    def sample(self, done: int, processes: Mapping[str, int]) -> None:
        self.done.append(done)
        for name, pid in processes.items():
            self.resident.setdefault(name, []).append(resident_bytes(pid))


async def bench_soak(at: Target, load: SoakLoad) -> Report:
    """Raises SoakFailed if a registry is not empty, or a descriptor is still open, after everybody has left."""
    await _run(at, 200, lambda client, rng: _utterance(client, load), load)  # caches fill, pools grow to their size
    before = await _quiet(at)
    phases: Sequence[tuple[str, int, Callable[[SpeechClient, random.Random], Awaitable[None]]]] = (
        ("utterances", load.utterances, lambda client, rng: _utterance(client, load)),
        ("aborts", load.aborts, lambda client, rng: _abort(client, rng)),
    )
    rows: list[Row] = []
    panels: list[Panel] = []
    for name, count, work in phases:
        began_s = time.monotonic()
        series = await _run(at, count, work, load)
        rows += _rows(name, series, time.monotonic() - began_s, slopes=load.slopes)
        panels.append(_panel(name, series))
        await _quiet(at)
    rows.append(await _churn(at, load))
    after = await _quiet(at)
    _check_descriptors(before, after)
    return Report("soak", rows, [panel for panel in panels if panel.x], settings={"characters": load.characters})


async def _run(
    at: Target, count: int, work: Callable[[SpeechClient, random.Random], Awaitable[None]], load: SoakLoad
) -> _Series:
    """So many times in all, by a few sessions side by side that stay open."""
    series = _Series()
    processes = at.processes()
    left = iter(range(count))
    every = max(1, count // SAMPLES)

    async def session(number: int) -> None:
        rng = random.Random(load.seed + number)
        async with _client(at) as client:
            for done in left:
                await work(client, rng)
                if done % every == 0:
                    series.sample(done, processes)

    async with asyncio.TaskGroup() as group:
        for number in range(WORKERS):
            group.create_task(session(number))
    return series


async def _utterance(client: SpeechClient, load: SoakLoad) -> None:
    heard = await client.speak("x" * load.characters)
    if not heard.completed:
        raise SoakFailed(f"an utterance ended as {heard.status}: {heard.error}")


async def _abort(client: SpeechClient, rng: random.Random) -> None:
    """Cancelled while it waits, speaks, or stands unread."""
    await client.begin("x" * 400)
    await asyncio.sleep(rng.uniform(0, 0.01))
    await client.cancel()
    heard = await client.listen()
    if heard.status not in ("cancelled", "completed") or heard.frames_after_ack:
        raise SoakFailed(f"an abort ended as {heard.status}, {heard.frames_after_ack} frames after its ack")


async def _churn(at: Target, load: SoakLoad) -> Row:
    """Sessions that come, speak a little and go: some politely, some in the middle of a word."""
    began_s = time.monotonic()
    left = iter(range(load.sessions))

    async def visitors() -> None:
        for number in left:
            async with _client(at) as client:
                if number % 3 == 0:
                    await client.speak("x")
                elif number % 3 == 1:
                    await client.begin("x" * 400)

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(visitors())
    return {"what": "sessions", "count": load.sessions, "seconds": time.monotonic() - began_s, "process": None}


async def _quiet(at: Target, timeout_s: float = 30.0) -> Mapping[str, int]:
    """Wait until every registry is empty; returns the open descriptors of each process then."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        values = (await look(at)).values
        left = {name: values[name] for name in REGISTRIES if values[name]}
        if not left:
            return {name: open_descriptors(pid) for name, pid in at.processes().items()}
        if time.monotonic() > deadline_s:
            raise SoakFailed(f"the server still holds {left} after {timeout_s:g} s of quiet")
        await asyncio.sleep(0.05)


def _check_descriptors(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    if before.keys() != after.keys():
        raise SoakFailed(f"the processes have changed: {sorted(before)} are now {sorted(after)}")
    # A keep-alive connection of the metrics may be open at either look.
    grown = {name: (before[name], after[name]) for name in before if after[name] > before[name] + 2}
    if grown:
        raise SoakFailed(f"open descriptors have grown: {grown}")


def _rows(what: str, series: _Series, seconds: float, *, slopes: bool) -> list[Row]:
    rows: list[Row] = []
    for process, resident in series.resident.items():
        first = len(series.done) // 4  # the slope is that of the last three quarters
        row: dict[str, float | int | str | None] = {
            "what": what,
            "count": series.done[-1] + 1,
            "seconds": seconds,
            "process": process,
            "RSS first MiB": resident[0] / 2**20,
            "RSS last MiB": resident[-1] / 2**20,
        }
        if slopes:
            line = slope(series.done[first:], resident[first:])
            row["RSS slope kB each"] = line.per_unit / 1000
            row["upper 95% bound kB each"] = line.upper_95 / 1000
        rows.append(row)
    return rows


def _panel(what: str, series: _Series) -> Panel:
    lines = {name: [value / 2**20 for value in values] for name, values in series.resident.items()}
    return Panel(f"resident memory over {what}", what, "MiB", [float(done) for done in series.done], lines)


def _client(at: Target) -> SpeechClient:
    return SpeechClient(at.url, api_key=at.api_key, config={"model": "sine"})
