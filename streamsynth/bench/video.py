"""`bench video`: first picture, chunks in time, and how soon a steer is seen, with one viewer and with more."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection

from streamsynth.bench.report import Panel, Report, Row, Value
from streamsynth.bench.rollout_counters import PagesUsed, idle_look, pages_held, stage_split_ms
from streamsynth.bench.statistics import quantile
from streamsynth.bench.target import Target
from streamsynth.bench.watcher import Watcher
from streamsynth.remote_socket import VIDEO_ROUTE, connect_socket, socket_url

PROMPTS = ("a red ball bouncing over a green meadow", "a blue square over the sea at night", "a white star in space")
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoLoad:
    """`viewers` at once, each for `seconds` of video in real time, a steer every `steer_every` seconds of it.

    `kv` and `transition_chunks` are the steers'. Sizes in pixels, None for the model's first.
    """

    model: str
    viewers: Sequence[int] = (1, 2)
    seconds: float = 20.0
    steer_every: float = 3.0
    kv: Sequence[str] = ("keep", "recache")
    transition_chunks: int = 0
    width: int | None = None
    height: int | None = None
    format: str = "m4s"


@dataclass(slots=True)
class _Seen:
    watcher: Watcher
    chunk_ns: int = 0
    error: str | None = None
    steering: list[asyncio.Task[None]] = field(default_factory=list)


async def bench_video(at: Target, load: VideoLoad) -> Report:
    cold = await _watch(at, load, load.kv[0], 0)
    rows = [await _row(at, load, viewers, kv, cold) for kv in load.kv for viewers in load.viewers]
    panels = [_panel(kv, load.viewers, [row for row in rows if row["kv"] == kv]) for kv in load.kv]
    settings: dict[str, Value] = {
        "model": load.model,
        "seconds": load.seconds,
        "steer_every": load.steer_every,
        "transition_chunks": load.transition_chunks,
        "format": load.format,
        "ready_s": at.ready_s,
    }
    return Report("video", rows, panels, settings=settings)


async def _row(at: Target, load: VideoLoad, viewers: int, kv: str, cold: _Seen) -> Row:
    before = await idle_look(at)
    used = PagesUsed(at)
    async with used.watched():
        seen = await asyncio.gather(*(_watch(at, load, kv, number) for number in range(viewers)))
    after = await idle_look(at)
    watchers = [one.watcher for one in seen if one.error is None]
    steers = [steer for watcher in watchers for steer in watcher.steers.values() if not steer.superseded]
    between = [value / 1e6 for watcher in watchers for value in watcher.between_ns()]
    late = [value for watcher in watchers for value in watcher.lateness_ns()]
    first = [_first_ms(watcher) for watcher in watchers]

    def since(when: Callable[..., int | None]) -> list[float]:
        return [(value - steer.sent_ns) / 1e6 for steer in steers if (value := when(steer)) is not None]

    queued, applied = since(lambda steer: steer.queued_ns), since(lambda steer: steer.applied_ns)
    delivered = since(lambda steer: steer.delivered_ns)
    return {
        "viewers": viewers,
        "kv": kv,
        "failed": sum(one.error is not None for one in seen),
        "first picture cold ms": _first_ms(cold.watcher),
        "first picture p50 ms": quantile(first, 0.5),
        "chunk ms": seen[0].chunk_ns / 1e6,
        "between chunks p50 ms": quantile(between, 0.5),
        "between chunks p99 ms": quantile(between, 0.99),
        "in time": sum(value == 0 for value in late) / len(late) if late else 0.0,
        "late p99 ms": quantile([value / 1e6 for value in late], 0.99),
        "stalls at 1 chunk": sum(watcher.stalls(1) for watcher in watchers),
        "stalls at 2 chunks": sum(watcher.stalls(2) for watcher in watchers),
        "steers": len(steers),
        "to queued p95 ms": quantile(queued, 0.95),
        "to applied p95 ms": quantile(applied, 0.95),
        "to delivered p95 ms": quantile(delivered, 0.95),
        "frames": sum(watcher.frames for watcher in watchers),
        **stage_split_ms(before, after),
        "pages used": used.most,
        "pages leaked": pages_held(after),
        "loop lag p99 <= ms": after.lag_p99_s(before) * 1000,
        "errors": "; ".join(sorted({one.error for one in seen if one.error is not None})) or None,
    }


def _first_ms(watcher: Watcher) -> float:
    return float("nan") if watcher.first_payload_ns is None else (watcher.first_payload_ns - watcher.began_ns) / 1e6


async def _watch(at: Target, load: VideoLoad, kv: str, number: int) -> _Seen:
    """One session to its end, as a viewer whose player takes pictures at their own rate."""
    seen = _Seen(Watcher(0))
    size = {name: value for name, value in (("width", load.width), ("height", load.height)) if value is not None}
    chosen = {"model": load.model, "format": load.format, **size}
    asked = {**chosen, "prompt": PROMPTS[number % len(PROMPTS)], "receipts": True}
    socket = await connect_socket(socket_url(at.url, VIDEO_ROUTE), at.api_key)
    try:
        seen.watcher.began_ns = time.monotonic_ns()
        await socket.send(json.dumps({"type": "session.start", **asked}))
        await _read(socket, seen, load, kv)
    finally:
        for task in seen.steering:
            task.cancel()
        await socket.close()
    return seen


async def _read(socket: ClientConnection, seen: _Seen, load: VideoLoad, kv: str) -> None:
    watcher, fps = seen.watcher, 1
    async for message in socket:
        now_ns = time.monotonic_ns()
        if isinstance(message, bytes):
            continue
        said = json.loads(message)
        match said["type"]:
            case "video.start":
                fps = said["config"]["fps"]
                seen.chunk_ns = said["config"]["chunk_frames"] * SECOND_NS // fps
            case "video.chunk_metadata":
                payload = await socket.recv()
                if said["kind"] == "media":
                    assert len(payload) == said["byte_length"]
                    _take(watcher, said, fps, time.monotonic_ns())
                    if not seen.steering:
                        seen.steering = [asyncio.create_task(_steer(socket, watcher, load, kv))]
            case "session.interaction.queued":
                watcher.queued(said["event_id"], now_ns)
            case "session.interaction.applied":
                watcher.applied(said["event_id"], now_ns)
            case "session.interaction.superseded":
                watcher.superseded(said["event_id"])
            case "session.done":
                watcher.close()
                return
            case "error":
                seen.error = said["code"]
                return


def _take(watcher: Watcher, said: dict[str, object], fps: int, now_ns: int) -> None:
    pts, timescale, frames = (int(str(said[name])) for name in ("pts", "timescale", "num_frames"))
    started = said["started_event_ids"]
    assert isinstance(started, list)
    media_ns = pts * SECOND_NS // timescale
    chunk = int(str(said["generation_chunk_index"]))
    watcher.media(chunk, frames, media_ns, media_ns + frames * SECOND_NS // fps, started, now_ns)


async def _steer(socket: ClientConnection, watcher: Watcher, load: VideoLoad, kv: str) -> None:
    """Steers at even times until the end, which it asks for."""
    count = int(load.seconds / load.steer_every)
    for number in range(1, count + 1):
        await asyncio.sleep(load.steer_every)
        if number == count:
            break
        event_id = f"steer-{number}"
        event = {"prompt": PROMPTS[number % len(PROMPTS)]}
        asked = {"event_id": event_id, "event": event, "transition_chunks": load.transition_chunks, "kv": kv}
        watcher.steered(event_id, time.monotonic_ns())
        await socket.send(json.dumps({"type": "session.interaction", "interaction": asked}))
    await socket.send(json.dumps({"type": "session.stop"}))


def _panel(kv: str, viewers: Sequence[int], rows: Sequence[Row]) -> Panel:
    names = ("first picture p50 ms", "between chunks p99 ms", "late p99 ms", "to applied p95 ms", "to delivered p95 ms")
    lines = {name: [_number(row[name]) for row in rows] for name in names}
    return Panel(f"steering with {kv}", "viewers", "ms", viewers, lines)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
