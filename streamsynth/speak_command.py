"""`streamsynth speak`: a text, a file or what is piped in, to the speakers, a file or a pipe."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from encodings.utf_8 import IncrementalDecoder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from streamsynth.console import give_up_output
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.long_text import Piece, UtteranceCutter
from streamsynth.speak_progress import Progress

if TYPE_CHECKING:
    from streamsynth.api import SpeechSession, StreamSynth, Utterance
    from streamsynth.sinks import Sink

app = typer.Typer(add_completion=False)

PAUSE_S = 0.6
"""Between the utterances of a long text."""

UNREAD_UTTERANCES = 4
"""How many utterances of a long text may be made, or under way, ahead of the one that is written."""

_READ_BYTES = 1 << 16


@app.command()
def speak(
    text: Annotated[str | None, typer.Argument(help="What to say. Without it: --file, or standard input.")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the text from this file.")] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A .wav, .mp3, .flac, .opus, .aac or .pcm file; - writes raw pcm to standard output.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    url: Annotated[str | None, typer.Option(help="Use the server there, with the key in STREAMSYNTH_API_KEY.")] = None,
    voice: Annotated[str | None, typer.Option()] = None,
    speed: Annotated[float | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same speech.")] = None,
) -> None:
    """Speak a text: to the speakers, a file or a pipe.

    Text that is piped in is spoken as it comes. Without -o the speech goes to the speakers, or as raw pcm (s16le, one
    channel) to standard output if that is not a terminal. Progress and timings go to standard error.
    """
    source = _source(text, file)
    piped = text is None and file is None
    settings = {"voice": voice, "speed": speed, "seed": seed}
    try:
        asyncio.run(_run(source, piped, output, model, url, settings))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        give_up_output()
        raise typer.Exit(141) from None
    except OSError as error:
        where = error.filename or output or "standard output"
        raise StreamSynthError(ErrorCode.INVALID_VALUE, f"{where}: {error.strerror}") from None


def _source(text: str | None, file: Path | None) -> AsyncIterator[str]:
    if text is not None and file is not None:
        raise invalid_value("--file", str(file), "absent when TEXT is given")
    if text is not None:
        return _once(text)
    if file is not None:
        return _once(_read_text(file))
    if sys.stdin.isatty():
        message = "there is nothing to say: give a TEXT, --file, or pipe text in"
        raise StreamSynthError(ErrorCode.MISSING_FIELD, message, param="text")
    return _piped(sys.stdin.fileno())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StreamSynthError(
            ErrorCode.INVALID_VALUE, f"--file {path} cannot be read: {reason}", param="file"
        ) from None


async def _once(text: str) -> AsyncIterator[str]:
    yield text


async def _piped(descriptor: int) -> AsyncIterator[str]:
    """The text as it is written at the other end, whatever the sizes of the pieces."""
    decoder = IncrementalDecoder()
    waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if waits:
            await _readable(descriptor)
        data = os.read(descriptor, _READ_BYTES)
        try:
            piece = decoder.decode(data, final=not data)
        except UnicodeDecodeError:
            raise StreamSynthError(
                ErrorCode.INVALID_VALUE, "the text on standard input is not UTF-8", param="text"
            ) from None
        if piece:
            yield piece
        if not data:
            return


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a descriptor that is always ready, such as /dev/null
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _run(
    source: AsyncIterator[str],
    piped: bool,
    output: str | None,
    model: str | None,
    url: str | None,
    settings: dict[str, Any],
) -> None:
    from streamsynth.api import StreamSynth
    from streamsynth.sinks import SpeakerSink

    sink = _open_sink(output)
    try:
        progress = Progress(sys.stderr, paced=piped or isinstance(sink, SpeakerSink))
        if url is None:
            synth = StreamSynth(model) if model is not None else StreamSynth()
        else:
            synth = StreamSynth.connect(url)
            settings = {**settings, "model": model}
        async with synth:
            progress.ready()
            await _speak(synth, source, sink, settings, progress)
            await sink.finish()
        progress.report()
    finally:
        sink.close()


def _open_sink(output: str | None) -> Sink:
    from streamsynth.sinks import FileSink, PipeSink, SpeakerSink

    if output is not None and output != "-":
        return FileSink(Path(output))
    if output == "-" or not sys.stdout.isatty():
        return PipeSink(sys.stdout.fileno())
    return SpeakerSink()


async def _speak(
    synth: StreamSynth, source: AsyncIterator[str], sink: Sink, settings: dict[str, Any], progress: Progress
) -> None:
    unread = asyncio.Semaphore(UNREAD_UTTERANCES)
    try:
        async with synth.speech_session(**settings) as session, asyncio.TaskGroup() as group:
            group.create_task(_feed(session, source, unread, progress))
            async for utterance in session:
                await _write(utterance, sink, progress)
                unread.release()
    except BaseExceptionGroup as failures:
        # Whatever failed first stopped the rest.
        raise failures.exceptions[0] from None


async def _feed(
    session: SpeechSession, source: AsyncIterator[str], unread: asyncio.Semaphore, progress: Progress
) -> None:
    """Text goes in as it comes, but no further ahead of what is heard than `unread` lets it: a book is not a burst."""
    cutter = UtteranceCutter()
    begun = False

    async def send(pieces: list[Piece]) -> None:
        nonlocal begun
        for piece in pieces:
            if not begun:
                await unread.acquire()
            begun = not piece.ends_utterance
            progress.text_sent()
            await session.send(piece.text)
            if piece.ends_utterance:
                await session.flush()

    async for text in source:
        await send(cutter.push(text))
    await send(cutter.finish())
    await session.finish()


async def _write(utterance: Utterance, sink: Sink, progress: Progress) -> None:
    paused = utterance.index == 0
    async for chunk in utterance:
        if not paused and len(chunk.samples):
            await sink.write(np.zeros(round(PAUSE_S * chunk.sample_rate), np.float32), chunk.sample_rate)
            paused = True
        progress.audio_made(len(chunk.samples), chunk.sample_rate)
        await sink.write(chunk.samples, chunk.sample_rate)
    if utterance.finish_reason == "length":
        progress.note("the model's limit cut this text short")
