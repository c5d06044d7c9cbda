"""`streamsynth video`: a prompt to a clip, steered at given times while it is made."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from streamsynth.console import give_up_output
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.generation import check_place, unfinished
from streamsynth.interactions.events import MAX_TRANSITION_CHUNKS, check_prompt
from streamsynth.interactions.messages import Superseded

if TYPE_CHECKING:
    from streamsynth.codecs import EncodingLane
    from streamsynth.codecs.pictures import Pictures
    from streamsynth.video_session import Receipt, VideoConfig, VideoSession

app = typer.Typer(add_completion=False)

_UPDATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*s?\s*:\s*(.+)", re.DOTALL)
_MOST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Update:
    """From about this second of the video on, its prompt is another."""

    at_s: float
    prompt: str


@dataclass(frozen=True, slots=True)
class _Asked:
    update: Update
    receipt: asyncio.Future[Receipt]

    @property
    def outcome(self) -> str:
        """Of one that did not start."""
        if not self.receipt.done() or self.receipt.cancelled():
            return "the video ended before it"
        if (error := self.receipt.exception()) is not None:
            return f"refused: {error}"
        superseded = isinstance(said := self.receipt.result(), Superseded) and said.by is not None
        return "another update took its place" if superseded else "the video ended before it"


@app.command()
def video(
    prompt: Annotated[str, typer.Argument(help="What to show.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="An .mp4 file; - writes it to standard output, live."),
    ] = None,
    update: Annotated[
        list[str] | None,
        typer.Option("--update", metavar='"2s: PROMPT"', help="Change the prompt while it runs; may be repeated."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long the video is.")] = 6.0,
    transition: Annotated[
        int | None, typer.Option(metavar="CHUNKS", help="Over how many chunks a change goes; 0 is a cut.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    url: Annotated[str | None, typer.Option(help="Use the server there, with the key in STREAMSYNTH_API_KEY.")] = None,
    width: Annotated[int | None, typer.Option()] = None,
    height: Annotated[int | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed and prompt give the same video.")] = None,
) -> None:
    """Make a video: to a file, which appears when it is whole, or as it is made to a pipe.

    A change takes effect at the next boundary between two of the model's chunks; where that was is said on standard
    error. One that the model refuses, or that the end comes before, leaves the video as it was, and exit status 1.
    """
    updates = sorted((parse_update(each) for each in update or ()), key=lambda each: each.at_s)
    if not 0 < seconds <= _MOST_SECONDS:
        raise invalid_value("--seconds", seconds, f"above 0 and at most {_MOST_SECONDS:g}")
    if output is None and sys.stdout.isatty():
        message = "there is nowhere to write: give -o FILE, or pipe the output on"
        raise StreamSynthError(ErrorCode.MISSING_FIELD, message, param="output")
    if output not in (None, "-"):
        _check_name(Path(output))
    if transition is not None and not 0 <= transition <= MAX_TRANSITION_CHUNKS:
        raise invalid_value("--transition", transition, f"within 0..{MAX_TRANSITION_CHUNKS}")
    for each in updates:
        if each.at_s >= seconds:
            raise invalid_value("--update", each.at_s, f"before the end of the video at {seconds:g} s")
    clip = _Clip(
        prompt=prompt,
        updates=updates,
        seconds=seconds,
        transition=transition,
        model=model,
        width=width,
        height=height,
        seed=seed,
    )
    try:
        if output not in (None, "-"):
            check_place(Path(output))
        asyncio.run(_run(clip, output, url))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        give_up_output()
        raise typer.Exit(141) from None
    except OSError as error:
        where = error.filename or output or "standard output"
        raise StreamSynthError(ErrorCode.INVALID_VALUE, f"{where}: {error.strerror}") from None


def _check_name(path: Path) -> None:
    if path.suffix.lower() != ".mp4":
        raise invalid_value("output", str(path), "a name that ends in .mp4, or - for standard output")
    if path.exists() and not path.is_file():
        raise invalid_value("output", str(path), "a file, no folder or pipe, or - for standard output")


def parse_update(text: str) -> Update:
    found = _UPDATE.fullmatch(text)
    if found is None:
        raise invalid_value("--update", text, 'a time and a prompt, such as "2s: snow falls"')
    return Update(float(found[1]), check_prompt(found[2], "--update"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Clip:
    """What was asked for."""

    prompt: str
    updates: Sequence[Update]
    seconds: float
    transition: int | None
    model: str | None
    width: int | None
    height: int | None
    seed: int | None


async def _run(clip: _Clip, output: str | None, url: str | None) -> None:
    from streamsynth.api import StreamSynth
    from streamsynth.config.registry import first_video_model

    synth = StreamSynth.connect(url) if url is not None else StreamSynth(clip.model or first_video_model("video"))
    async with synth:
        session = synth.video_session(
            clip.prompt, model=clip.model, width=clip.width, height=clip.height, seed=clip.seed
        )
        async with session:
            await _film(session, output, clip)


class _Target(Protocol):
    """Where a video goes. Its methods block."""

    def put(self, pictures: Pictures) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None:
        """Leave nothing of what is unfinished."""


class _Piped:
    """Standard output, each picture at once."""

    def __init__(self, config: VideoConfig) -> None:
        from streamsynth.codecs import ClipEncoder

        self._encoder = ClipEncoder(width=config.width, height=config.height, fps=config.fps)

    def put(self, pictures: Pictures) -> None:
        self._write(self._encoder.encode(pictures))

    def finish(self) -> None:
        self._write(self._encoder.finish())

    def discard(self) -> None:
        """What is sent is sent."""

    def _write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _target(output: str | None, config: VideoConfig) -> _Target:
    from streamsynth.clip_file import ClipFile

    if output is None or output == "-":
        return _Piped(config)
    path = Path(output)
    return ClipFile(path, unfinished(path), width=config.width, height=config.height, fps=config.fps)


async def _film(session: VideoSession, output: str | None, clip: _Clip) -> None:
    """However it ends, nobody works on the target any more."""
    from streamsynth.codecs import EncodingLane

    target, lane = _target(output, session.config), EncodingLane()
    try:
        await _write(session, target, lane, clip)
    finally:
        await lane.idle()
        await lane.start(target.discard)


async def _write(session: VideoSession, target: _Target, lane: EncodingLane, clip: _Clip) -> None:
    """Pictures as they come; leaving the session ends a video that has enough of them."""
    config = session.config
    waiting, asked, started = deque(clip.updates), dict[str, _Asked](), set[str]()
    wanted, made = max(1, round(clip.seconds * config.fps)), 0
    async for chunk in session:
        for event_id in chunk.report.started:
            started.add(event_id)
            typer.echo(f"{chunk.first_frame / config.fps:.2f} s: {asked[event_id].update.prompt}", err=True)
        pictures = chunk.pictures[: wanted - made]
        if len(pictures):
            await lane.start(partial(target.put, pictures))
            made += len(pictures)
        # At the boundary nearest to its time; of what is made ahead, an update comes behind.
        while waiting and made + config.chunk_frames / 2 >= waiting[0].at_s * config.fps:
            update = waiting.popleft()
            event_id = f"update-{len(asked)}"
            receipt = session.interact(update.prompt, event_id=event_id, transition_chunks=clip.transition)
            asked[event_id] = _Asked(update, receipt)
        if made >= wanted:
            break
    if made < wanted:
        message = f"the video ended after {made} pictures; {wanted} were asked for"
        raise StreamSynthError(ErrorCode.ENGINE_FAILED, message)
    await lane.start(target.finish)
    said = (
        f"{made} pictures of {config.width}x{config.height} at {config.fps} fps by {config.model}, seed {config.seed}"
    )
    typer.echo(said, err=True)
    missing = [each for event_id, each in asked.items() if event_id not in started]
    for each in missing:
        typer.echo(f"{each.update.at_s:g} s: {each.update.prompt}: {each.outcome}", err=True)
    if missing:
        raise typer.Exit(1)
