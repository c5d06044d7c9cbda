"""What a server's video engine says of a run: where the device's time went, and which pages it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamsynth.bench.report import Value
from streamsynth.bench.scrape import Look, look
from streamsynth.bench.target import Target

PASSES = ("denoise", "decode", "commit", "recache")
_EVERY_S = 0.5
_PATIENCE_S = 10.0


async def idle_look(at: Target) -> Look:
    """Once engines hold no request and no page, as heartbeats say it; or after a while, whatever they say."""
    seen = await look(at)
    for _ in range(round(_PATIENCE_S / _EVERY_S)):
        # Engines that do not count themselves have one heartbeat to wait for.
        await asyncio.sleep(_EVERY_S)
        seen = await look(at)
        if not seen.engine.get("live") and not pages_held(seen):
            break
    return seen


def stage_split_ms(before: Look, after: Look) -> dict[str, Value]:
    """The device's time for a chunk, of all its videos together, by kind of pass; None if the engine does not say."""
    chunks = after.engine.get("chunks", 0.0) - before.engine.get("chunks", 0.0)

    def each_ms(kind: str) -> float | None:
        name = f"{kind}_us"
        if name not in after.engine or not chunks:
            return None
        return (after.engine[name] - before.engine.get(name, 0.0)) / 1000 / chunks

    return {f"{kind} ms a chunk": each_ms(kind) for kind in PASSES}


def pages_held(seen: Look) -> int | None:
    """Pages that are not free: once everything has ended, those that were lost."""
    if "free_pages" not in seen.engine or "pages" not in seen.engine:
        return None
    return int(seen.engine["pages"] - seen.engine["free_pages"])


class PagesUsed:
    """The most pages that were held at one of many looks."""

    def __init__(self, at: Target) -> None:
        self.most: int | None = None
        self._at = at

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            held = pages_held(await look(self._at))
            if held is not None:
                self.most = max(held, self.most or 0)
            await asyncio.sleep(_EVERY_S)
