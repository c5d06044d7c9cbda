"""The Python API in four short pieces: `python examples/python_api.py [URL of a server]`.

Without a URL the voice runs in worker processes of this program; nothing else differs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from streamsynth import StreamSynth, StreamSynthError


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")


async def speak_a_text(synth: StreamSynth) -> None:
    """Chunks arrive while the rest is still being made."""
    async for chunk in synth.speak("Hello there. This is speech while it is being made."):
        show(f"  {len(chunk.samples):6} samples from {chunk.first_sample}{', the last' if chunk.final else ''}")


async def words() -> AsyncIterator[str]:
    text = "The text may come word by word. Speech begins with the first sentence that is certain."
    for word in text.split(" "):
        yield f"{word} "
        await asyncio.sleep(0.02)


async def speak_while_text_comes(synth: StreamSynth) -> None:
    async with synth.speak(words(), speed=1.1) as speech:
        seconds = sum([len(chunk.samples) / chunk.sample_rate async for chunk in speech])
    show(f"  {seconds:.2f} s of speech, finished because: {speech.finish_reason}")


async def interrupt_and_go_on(synth: StreamSynth) -> None:
    """A session stays usable after a cancel."""
    async with synth.speech_session() as session:
        await session.send("This will not be heard to its end, because somebody interrupts.")
        interrupted = await session.flush()
        async for _ in interrupted:
            await session.cancel(interrupted)
        await session.send("Where were we?")
        answer = await session.flush()
        chunks = [chunk async for chunk in answer]
        show(f"  utterance {interrupted.index} {interrupted.status}, utterance {answer.index}: {len(chunks)} chunks")


async def handle_errors(synth: StreamSynth) -> None:
    """Errors carry the same codes here and over a socket, and name the field and its limit."""
    try:
        async for _ in synth.speak("Hello.", speed=50):
            pass
    except StreamSynthError as error:
        show(f"  {error.code}: {error}")


async def main(url: str | None) -> None:
    async with StreamSynth() if url is None else StreamSynth.connect(url) as synth:
        for example in (speak_a_text, speak_while_text_comes, interrupt_and_go_on, handle_errors):
            show(example.__name__.replace("_", " "))
            await example(synth)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
