"""`bench sessions`: many sessions at once on the sine model, whose chunks are made in real time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from streamsynth.bench.cancels import cancel_at_random
from streamsynth.bench.client import Heard, SpeechClient
from streamsynth.bench.load import closed_loop
from streamsynth.bench.report import Panel, Report, Row
from streamsynth.bench.scrape import look
from streamsynth.bench.speech import row_of
from streamsynth.bench.statistics import quantile
from streamsynth.bench.target import Target
from streamsynth.bench.texts import text_for

MODEL = "sine"
STALLED_READERS = 64
CANCELLING = 50
LONGEST_STALL_S = 15.0
"""A reader that stalls for 30 s is closed, which would end what is measured."""

REAL_TIME = "{delay 80}"
"""The sine model's chunks are 80 ms long."""

_SMALL_BUFFER = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionsLoad:
    """`sessions` that speak in real time, for `seconds`; `cancels` in all, by fifty sessions that speak."""

    sessions: Sequence[int] = (1, 10, 50, 100)
    seconds: float = 20.0
    cancels: int = 1000
    seed: int = 1


async def bench_sessions(at: Target, load: SessionsLoad) -> list[Report]:
    speaking = [await _speaking(at, load, count) for count in load.sessions]
    cancels = await _cancels(at, load, "alone")
    stalls = await _stalls(at, load)
    return [
        Report("sessions", speaking, _panels(speaking, load), settings=_settings(load)),
        Report("sessions-cancels", [cancels], settings=_settings(load)),
        Report("sessions-stalled", stalls, settings=_settings(load)),
    ]


async def bench_cancels_beside_a_voice(at: Target, load: SessionsLoad) -> Report:
    """The cancels once more, at a server whose hibari worker is kept busy."""
    async with _busy_voice(at):
        row = await _cancels(at, load, "beside a busy voice")
    return Report("sessions-cancels-busy", [row], settings=_settings(load))


def _settings(load: SessionsLoad) -> dict[str, float]:
    return {"seconds": load.seconds, "cancels": load.cancels}


def _panels(rows: Sequence[Row], load: SessionsLoad) -> list[Panel]:
    x = [float(count) for count in load.sessions]
    lateness = ("chunk lateness p99 ms", "loop lag p99 <= ms")
    return [
        Panel("continuity", "sessions", "", x, {"C100": [_float(row["C100"]) for row in rows]}),
        Panel("lateness", "sessions", "ms", x, {name: [_float(row[name]) for row in rows] for name in lateness}),
    ]


async def _speaking(at: Target, load: SessionsLoad, count: int) -> Row:
    before = await look(at)
    async with _clients(at, count) as clients:
        heard = await _speak_in_real_time(clients, load.seconds)
    row = row_of(f"{count} sessions", heard, before, await look(at))
    return {**row, "chunk lateness p99 ms": _lateness_p99_ms(heard)}


async def _speak_in_real_time(clients: Sequence[SpeechClient], seconds: float) -> list[Heard]:
    """People do not begin at the same moment, but within the first second."""
    return await closed_loop(
        len(clients),
        seconds,
        lambda client: clients[client].speak(REAL_TIME + text_for(MODEL, client)),
        spread_s=1.0,
    )


async def _cancels(at: Target, load: SessionsLoad, where: str) -> Row:
    """Fifty sessions speak in real time; each cancels at random times, again and again."""
    before = await look(at)
    heard: list[Heard] = []
    each = -(-load.cancels // CANCELLING)

    async def session(client: SpeechClient, rng: random.Random) -> None:
        heard.extend([await cancel_at_random(client, REAL_TIME + "x" * 80, 1.0, rng) for _ in range(each)])

    async with _clients(at, CANCELLING) as clients, asyncio.TaskGroup() as group:
        for number, client in enumerate(clients):
            group.create_task(session(client, random.Random(load.seed + number)))
    after = await look(at)
    acks = [one.cancel_to_ack_ns / 1e6 for one in heard if one.cancel_to_ack_ns is not None]
    return {
        "cancels": where,
        "sessions": CANCELLING,
        "acknowledged": len(acks),
        "cancel-to-ack p50 ms": quantile(acks, 0.5),
        "cancel-to-ack p95 ms": quantile(acks, 0.95),
        "cancel-to-ack p99 ms": quantile(acks, 0.99),
        "in the server p95 <= ms": after.histogram("cancel_to_ack_seconds", before).quantile_bound(0.95) * 1000,
        "cancel-to-idle p95 <= ms": after.histogram("cancel_to_idle_seconds", before).quantile_bound(0.95) * 1000,
        "frames after the ack": sum(one.frames_after_ack for one in heard),
        "loop lag p99 <= ms": after.lag_p99_s(before) * 1000,
    }


async def _stalls(at: Target, load: SessionsLoad) -> list[Row]:
    """The same forty-nine sessions without and with a reader that stalls; then sixty-four of those and one client."""
    others = 49
    rows: list[Row] = [{"load": f"{others} sessions", **await _beside(at, load, others, stalled=0)}]
    rows.append({"load": f"{others} sessions, 1 stalled reader", **await _beside(at, load, others, stalled=1)})
    name = f"1 session, {STALLED_READERS} stalled readers"
    rows.append({"load": name, **await _beside(at, load, 1, stalled=STALLED_READERS)})
    return rows


async def _beside(
    at: Target, load: SessionsLoad, count: int, *, stalled: int
) -> Mapping[str, float | int | str | None]:
    async with _clients(at, stalled, receive_buffer=_SMALL_BUFFER) as readers, _clients(at, count) as clients:
        for reader in readers:
            await reader.begin("x" * 60_000)
        await asyncio.sleep(1.0 if stalled else 0.0)  # they fill what there is to fill
        before = await look(at)
        heard = await _speak_in_real_time(clients, min(load.seconds, LONGEST_STALL_S))
        ended = await look(at)
        # Only the stalled ones are left: a worker that still steps steps for nobody. It says so twice a second.
        await asyncio.sleep(1.0)
        idle = await look(at)
        await asyncio.sleep(1.5)
        after = await look(at)
    row = row_of("", heard, before, ended)
    kept = ("requests", "failed", "TTFA p50 ms", "TTFA p95 ms", "underrun p95 ms", "C100", "errors")
    return {
        **{name: row[name] for name in kept},
        "chunk lateness p99 ms": _lateness_p99_ms(heard),
        "steps for stalled readers": round(after.values["worker_steps_total"] - idle.values["worker_steps_total"]),
    }


def _lateness_p99_ms(heard: Sequence[Heard]) -> float:
    return quantile([late / 1e6 for one in heard for late in one.lateness_ns], 0.99)


@contextlib.asynccontextmanager
async def _clients(at: Target, count: int, receive_buffer: int | None = None) -> AsyncIterator[list[SpeechClient]]:
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            SpeechClient(at.url, api_key=at.api_key, config={"model": MODEL}, receive_buffer=receive_buffer)
            for _ in range(count)
        ]
        yield [await stack.enter_async_context(client) for client in clients]


@contextlib.asynccontextmanager
async def _busy_voice(at: Target) -> AsyncIterator[None]:
    """One client that never rests keeps the voice worker busy."""

    async def speak() -> None:
        async with SpeechClient(at.url, api_key=at.api_key, config={"model": "hibari"}) as client:
            for number in range(1_000_000):
                await client.speak(text_for("hibari", number))

    speaking = asyncio.create_task(speak())
    try:
        yield
    finally:
        speaking.cancel()
        await asyncio.wait([speaking])
        if not speaking.cancelled():
            speaking.result()


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
