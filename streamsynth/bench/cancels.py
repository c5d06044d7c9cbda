"""Cancels at random times, each checked to be the end of what it names."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from streamsynth.bench.client import Heard, SpeechClient


async def cancel_at_random(client: SpeechClient, text: str, within_s: float, rng: random.Random) -> Heard:
    """Speak, cancel after a random time, and count what still comes after the ack, up to the answer to a ping."""
    await client.begin(text)
    wait_s = rng.uniform(0, within_s)

    async def cancel() -> None:
        await asyncio.sleep(wait_s)
        await client.cancel()

    cancelling = asyncio.create_task(cancel())
    heard = await client.listen()
    # An utterance may have ended by itself before its cancel.
    cancelling.cancel()
    await asyncio.wait([cancelling])
    late = await client.frames_until_quiet()
    return replace(heard, frames_after_ack=heard.frames_after_ack + late)
