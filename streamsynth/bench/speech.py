"""`bench speech`: what listeners hear while more and more of them talk to one model."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamsynth.bench.client import Heard, SpeechClient
from streamsynth.bench.load import closed_loop, open_loop
from streamsynth.bench.report import Panel, Report, Row, Value
from streamsynth.bench.scrape import Look, look
from streamsynth.bench.statistics import quantile
from streamsynth.bench.target import Target
from streamsynth.bench.texts import text_for
from streamsynth.testing.viewer import Continuity, continuity

STARTS_CONTINUOUS = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeechLoad:
    """Loads of `seconds` each, then `cancels` cancels at random times from one client.

    `clients` are closed loops that ask again as soon as they have everything, `listeners` those that first hear it to
    its end, `rates` open loops of so many arrivals a second. With `text`, each says that; `max_new_tokens` ends it.
    """

    model: str
    clients: Sequence[int] = (1, 2, 4)
    listeners: Sequence[int] = ()
    rates: Sequence[float] = ()
    seconds: float = 20.0
    cancels: int = 20
    seed: int = 1
    text: str | None = None
    max_new_tokens: int | None = None

    @property
    def config(self) -> Mapping[str, object]:
        limit = {} if self.max_new_tokens is None else {"max_new_tokens": self.max_new_tokens}
        return {"model": self.model, **limit}

    def texts(self) -> Iterator[str]:
        for number in itertools.count():
            yield text_for(self.model, number) if self.text is None else self.text


async def bench_speech(at: Target, load: SpeechLoad) -> Report:
    texts = load.texts()
    await _speak_once(at, load, texts)  # what loads lazily is loaded
    busy = [await _closed(at, load, clients, texts, listening=False) for clients in load.clients]
    listening = [await _closed(at, load, clients, texts, listening=True) for clients in load.listeners]
    arriving = [await _open(at, load, rate, texts) for rate in load.rates]
    panels = [
        *_panels("clients that never rest", load.clients, busy),
        *_panels("clients that listen", load.listeners, listening),
        *_panels("arrivals a second", load.rates, arriving),
    ]
    streams = max(_sustained(busy, load.clients), _sustained(listening, load.listeners))
    notes = [f"streams at RTF < 1 with C100 >= 99%: {streams}"]
    if load.cancels:
        notes.append(await _cancel_note(at, load, texts))
    settings = {"model": load.model, "seconds": load.seconds, "ready_s": at.ready_s}
    return Report("speech", [*busy, *listening, *arriving], panels, notes, settings)


async def _closed(at: Target, load: SpeechLoad, clients: int, texts: Iterator[str], *, listening: bool) -> Row:
    sessions = [SpeechClient(at.url, api_key=at.api_key, config=load.config) for _ in range(clients)]
    for session in sessions:
        await session.__aenter__()

    async def speak(client: int) -> Heard:
        heard = await sessions[client].speak(next(texts))
        if listening and heard.ttfa_ns is not None:
            # Until its player, which started at the first audio, has played the last.
            unheard_ns = heard.ttfa_ns + heard.audio_ns - heard.ended_ns
            await asyncio.sleep(max(0, unheard_ns) / 1e9)
        return heard

    try:
        before = await look(at)
        heard = await closed_loop(clients, load.seconds, speak)
        return row_of(f"{clients} {'listeners' if listening else 'clients'}", heard, before, await look(at))
    finally:
        for session in sessions:
            await session.__aexit__(None, None, None)


async def _open(at: Target, load: SpeechLoad, rate: float, texts: Iterator[str]) -> Row:
    before = await look(at)
    heard = await open_loop(rate, load.seconds, lambda _: _speak_once(at, load, texts), rng=random.Random(load.seed))
    return row_of(f"{rate:g} a second", heard, before, await look(at))


async def _speak_once(at: Target, load: SpeechLoad, texts: Iterator[str]) -> Heard:
    async with SpeechClient(at.url, api_key=at.api_key, config=load.config) as client:
        return await client.speak(next(texts))


async def _cancel_note(at: Target, load: SpeechLoad, texts: Iterator[str]) -> str:
    from streamsynth.bench.cancels import cancel_at_random

    before = await look(at)
    rng = random.Random(load.seed)
    async with SpeechClient(at.url, api_key=at.api_key, config=load.config) as client:
        cancels = [await cancel_at_random(client, next(texts) * 3, 0.5, rng) for _ in range(load.cancels)]
    idle = (await look(at)).histogram("cancel_to_idle_seconds", before)
    acks = [heard.cancel_to_ack_ns / 1e6 for heard in cancels if heard.cancel_to_ack_ns is not None]
    late = sum(heard.frames_after_ack for heard in cancels)
    return (
        f"{len(acks)} cancels: cancel-to-ack p50 {quantile(acks, 0.5):.1f} ms, p95 {quantile(acks, 0.95):.1f} ms; "
        f"cancel-to-idle p95 <= {idle.quantile_bound(0.95) * 1000:.0f} ms; frames after the ack: {late}"
    )


def row_of(load: str, heard: Sequence[Heard], before: Look, after: Look) -> Row:
    """The metrics of numbers.md for one load."""
    good = [one for one in heard if one.completed and one.ttfa_ns is not None]
    failed = len(heard) - len(good)
    shares = _continuity(good, failed)
    ttfa = _ms([one.ttfa_ns for one in good])
    audible = _ms([one.audible_ns for one in good])
    return {
        "load": load,
        "requests": len(heard),
        "failed": failed,
        "TTFA p50 ms": quantile(ttfa, 0.5),
        "TTFA p95 ms": quantile(ttfa, 0.95),
        "first payload p50 ms": quantile(_ms([one.first_payload_ns for one in good]), 0.5),
        "audible onset p50 ms": quantile(audible, 0.5),
        "audible onset p95 ms": quantile(audible, 0.95),
        "RTF p50": quantile([one.rtf for one in good], 0.5),
        "RTF p95": quantile([one.rtf for one in good], 0.95),
        "underrun p95 ms": quantile(_ms([one.underrun_ns for one in good]), 0.95),
        "C50": shares.c50,
        "C100": shares.c100,
        "C200": shares.c200,
        "loop lag p99 <= ms": after.lag_p99_s(before) * 1000,
        "errors": "; ".join(sorted({one.error for one in heard if one.error is not None})) or None,
    }


def _continuity(good: Sequence[Heard], failed: int) -> Continuity:
    if not good and not failed:
        return Continuity(math.nan, math.nan, math.nan)
    return continuity([one.underrun_ns for one in good], failed=failed)


def _ms(values: Sequence[int | None]) -> list[float]:
    return [value / 1e6 for value in values if value is not None]


def _sustained(rows: Sequence[Row], clients: Sequence[int]) -> int:
    """The largest closed loop of those measured that every listener could follow."""
    fit = [
        count
        for count, row in zip(clients, rows, strict=False)
        if _number(row["RTF p95"]) < 1 and _number(row["C100"]) >= STARTS_CONTINUOUS
    ]
    return max(fit, default=0)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _panels(label: str, x: Sequence[float], rows: Sequence[Row]) -> list[Panel]:
    if not x:
        return []
    late = ("TTFA p50 ms", "TTFA p95 ms", "audible onset p50 ms", "underrun p95 ms")
    return [
        Panel("first audio and lateness", label, "ms", x, _lines(rows, late)),
        Panel("continuity and RTF", label, "", x, _lines(rows, ("C50", "C100", "C200", "RTF p50"))),
    ]


def _lines(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[float | None]]:
    return {name: [_number(row[name]) for row in rows] for name in names}
