"""Start a server, speak a few sentences through it as they are made, and stop it again: `make demo`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from streamsynth import StreamSynth, StreamSynthError
from streamsynth.sinks import FileSink
from streamsynth.testing.server_process import ServerProcess

TEXT = (
    "Hello! You are listening to StreamSynth. This sentence left the server while the next one was still being made. "
    "Nothing was recorded beforehand, and nothing was sent to another machine. "
    "Type something in the browser, and it will speak as you write."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Times count from the moment the text was handed over; `first_s` is the length of the first piece."""

    to_first_audio_s: float
    first_s: float
    to_end_s: float
    audio_s: float
    chunks: int

    def __str__(self) -> str:
        return (
            f"time to first audio  {self.to_first_audio_s * 1000:.0f} ms, "
            f"its first piece {self.first_s * 1000:.0f} ms long\n"
            f"real-time factor     {self.to_end_s / self.audio_s:.3f} "
            f"({self.audio_s:.2f} s of speech in {self.to_end_s:.2f} s)\n"
            f"chunks               {self.chunks}\n"
        )


async def speak(url: str, text: str, path: Path) -> Measured:
    """Speak through the server at `url` into a file, keeping the time."""
    sink = FileSink(path)
    firsts: list[tuple[float, float]] = []
    audio_s, chunks = 0.0, 0
    try:
        async with StreamSynth.connect(url) as synth:
            began = time.monotonic()
            async for chunk in synth.speak(text):
                seconds = len(chunk.samples) / chunk.sample_rate
                if seconds:
                    firsts = firsts or [(time.monotonic() - began, seconds)]
                    chunks += 1
                    audio_s += seconds
                    await sink.write(chunk.samples, chunk.sample_rate)
            to_end_s = time.monotonic() - began
        await sink.finish()
    finally:
        sink.close()
    ((to_first_audio_s, first_s),) = firsts
    return Measured(
        to_first_audio_s=to_first_audio_s, first_s=first_s, to_end_s=to_end_s, audio_s=audio_s, chunks=chunks
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/demo.wav"))
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--model", metavar="NAME", help="Another voice than the default one.")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with ServerProcess.start(*(("--model", options.model) if options.model else ())) as server:
        sys.stdout.write(f"server               {server.url}, ready after {server.ready_s:.2f} s\n")
        measured = asyncio.run(speak(server.url, options.text, options.output))
    sys.stdout.write(f"{measured}written              {options.output}; the server has stopped\n")


if __name__ == "__main__":
    try:
        main()
    except (StreamSynthError, RuntimeError, OSError) as error:
        sys.exit(f"error: {error}")
