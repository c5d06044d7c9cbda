"""A client of the speech socket that uses only the messages the reference (vLLM-Omni) documents, in its own words.

It knows nothing of StreamSynth's additions, so it works with any server of that dialect:

    python examples/reference_speech_client.py --text "Hello there." --text "A second utterance on the same socket."
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import sys
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

URL = "ws://127.0.0.1:8000/v1/audio/speech/stream"


@dataclass(frozen=True, kw_only=True)
class Options:
    output_dir: Path = Path("out")
    config: dict[str, Any] = field(default_factory=dict)
    simulate_stt: bool = False
    stt_delay_s: float = 0.1
    save_chunks: bool = False


@dataclass
class Sentence:
    """What arrives between `audio.start` and `audio.done`; `timestamps` None until a frame carried a list."""

    start: dict[str, Any]
    audio: bytearray = field(default_factory=bytearray)
    chunks: int = 0
    timestamps: list[dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        return f"utterance_{self.start['utterance_index']:03d}_sentence_{self.start['sentence_index']:03d}"


def words_of(text: str) -> list[str]:
    """Word by word, each with the space behind it, the last without."""
    words = text.split(" ")
    return [f"{word} " for word in words[:-1]] + words[-1:]


async def run(url: str, texts: list[str], options: Options, say: Callable[[str], object]) -> None:
    """One connection, one config, one utterance for each text."""
    options.output_dir.mkdir(parents=True, exist_ok=True)
    async with connect(url) as socket:
        await socket.send(json.dumps({"type": "session.config", **options.config}))
        for text in texts:
            sender = asyncio.create_task(send_text(socket, text, options))
            try:
                await receive_utterance(socket, options, say)
            finally:
                sender.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sender
        await socket.send(json.dumps({"type": "session.close"}))


async def send_text(socket: ClientConnection, text: str, options: Options) -> None:
    for piece in words_of(text) if options.simulate_stt else [text]:
        await socket.send(json.dumps({"type": "input.text", "text": piece}))
        if options.simulate_stt:
            await asyncio.sleep(options.stt_delay_s)
    await socket.send(json.dumps({"type": "input.done"}))


async def receive_utterance(socket: ClientConnection, options: Options, say: Callable[[str], object]) -> None:
    """Until `session.done`. Errors are shown, and do not end the connection."""
    sentence: Sentence | None = None
    async for message in socket:
        if isinstance(message, bytes):
            if sentence is not None:
                take_audio(sentence, message, options)
            continue
        event = json.loads(message)
        match event.get("type"):
            case "audio.start":
                sentence = Sentence(event)
            case "audio.chunk" if sentence is not None:
                take_chunk(sentence, event, options)
            case "audio.done" if sentence is not None:
                say(f"{sentence.name}: {event['total_bytes']} bytes{', incomplete' if event['error'] else ''}")
                save_sentence(sentence, options)
                sentence = None
            case "session.done":
                say(f"utterance {event['utterance_index']}: {event['total_sentences']} sentences")
                return
            case "error":
                say(f"error: {event['message']}")
            case kind:
                say(f"ignored: {kind}")
    raise ConnectionError("the server closed the connection before session.done")


def take_audio(sentence: Sentence, data: bytes, options: Options) -> None:
    sentence.audio += data
    if options.save_chunks:
        save_audio(options.output_dir / f"{sentence.name}_chunk_{sentence.chunks:03d}", data, sentence.start)
    sentence.chunks += 1


def take_chunk(sentence: Sentence, event: dict[str, Any], options: Options) -> None:
    """A trailing chunk may have timestamps and no audio: there is nothing to hear, and no file."""
    if event["timestamps"] is not None:
        sentence.timestamps = (sentence.timestamps or []) + event["timestamps"]
    data = base64.b64decode(event["audio_b64"])
    sentence.audio += data
    if not options.save_chunks:
        return
    name = f"{sentence.name}_chunk_{event['chunk_id']:03d}"
    if data:
        save_audio(options.output_dir / name, data, {**sentence.start, "sample_rate": event["sample_rate"]})
    times = {key: event[key] for key in ("chunk_id", "chunk_start_ms", "chunk_end_ms")}
    save_timestamps(options.output_dir / name, sentence.start, event["timestamps"], times)


def save_sentence(sentence: Sentence, options: Options) -> None:
    path = options.output_dir / sentence.name
    if sentence.audio:
        save_audio(path, bytes(sentence.audio), sentence.start)
    if options.config.get("word_timestamps"):
        save_timestamps(path, sentence.start, sentence.timestamps, {})


def save_audio(path: Path, data: bytes, start: dict[str, Any]) -> None:
    """In the format the server said; pcm raw, and once more as a WAV file that players understand."""
    if start["format"] != "pcm":
        path.with_name(f"{path.name}.{start['format']}").write_bytes(data)
        return
    path.with_name(f"{path.name}.pcm").write_bytes(data)
    with wave.open(str(path.with_name(f"{path.name}.wav")), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(start["sample_rate"])
        file.writeframes(data)


def save_timestamps(
    path: Path, start: dict[str, Any], timestamps: list[dict[str, Any]] | None, more: dict[str, Any]
) -> None:
    """`timestamps` null: the alignment failed; empty: there was nothing to align."""
    words = (entry["word"] for entry in timestamps or [])
    content = {
        "utterance_index": start["utterance_index"],
        "sentence_index": start["sentence_index"],
        "sentence_text": start["sentence_text"],
        "covered_text": " ".join(word for word in words if word),
        "timestamps": timestamps,
        **more,
    }
    path.with_name(f"{path.name}_timestamps.json").write_text(json.dumps(content, indent=2))


def config_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Only what was asked for: everything else keeps the server's default."""
    return dict(_given(arguments, "model", "voice", "response_format", "speed", "stream_audio", "word_timestamps"))


def _given(arguments: argparse.Namespace, *names: str) -> Iterator[tuple[str, Any]]:
    for name in names:
        value = getattr(arguments, name)
        if value not in (None, False):
            yield name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="append", required=True, help="one utterance each, on the same connection")
    parser.add_argument("--url", default=URL)
    parser.add_argument("--output-dir", type=Path, default=Path("out"))
    parser.add_argument("--simulate-stt", action="store_true", help="send word by word, as speech recognition would")
    parser.add_argument("--stt-delay", type=float, default=0.1, metavar="SECONDS")
    parser.add_argument("--save-chunks", action="store_true", help="a file for each frame too")
    parser.add_argument("--model")
    parser.add_argument("--voice")
    parser.add_argument("--response-format")
    parser.add_argument("--speed", type=float)
    parser.add_argument("--stream-audio", action="store_true", help="several frames an utterance, as they are made")
    parser.add_argument("--word-timestamps", action="store_true")
    arguments = parser.parse_args()
    options = Options(
        output_dir=arguments.output_dir,
        config=config_of(arguments),
        simulate_stt=arguments.simulate_stt,
        stt_delay_s=arguments.stt_delay,
        save_chunks=arguments.save_chunks,
    )
    try:
        asyncio.run(run(arguments.url, arguments.text, options, lambda line: sys.stdout.write(f"{line}\n")))
    except (OSError, WebSocketException) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
