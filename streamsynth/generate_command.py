"""`streamsynth generate`: a prompt to a whole clip or an image in a file."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from streamsynth.config.show import DeployOption
from streamsynth.console import refuse_beside_url
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.generation import IMAGE_FORMATS

app = typer.Typer(add_completion=False)

_VIDEO_ENDING = ".mp4"
_ENDINGS = (_VIDEO_ENDING, *IMAGE_FORMATS)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to show.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="An .mp4 for a clip; a .png or .jpg for an image.")
    ],
    model: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    deploy: DeployOption = None,
    url: Annotated[str | None, typer.Option(help="Use the server there, with the key in STREAMSYNTH_API_KEY.")] = None,
    size: Annotated[str | None, typer.Option(metavar="WxH", help="One of the model's sizes.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long a clip is: the nearest that the model makes.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed and prompt give the same pictures.")] = None,
    steps: Annotated[int | None, typer.Option(help="Where the model lets them be chosen.")] = None,
    guidance: Annotated[float | None, typer.Option(help="How closely the prompt is followed.")] = None,
    negative_prompt: Annotated[str | None, typer.Option(help="What not to show.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="The picture that it begins with.")] = None,
) -> None:
    """Make a whole clip, or an image: what the file's ending says.

    The file appears when it is whole. How far it is is said on standard error. Ctrl-C ends the work.
    """
    refuse_beside_url(url, {"--deploy": None if deploy is None else ", ".join(map(str, deploy))})
    ending = output.suffix.lower()
    if ending not in _ENDINGS:
        raise invalid_value("--output", str(output), "a file that ends in " + ", ".join(_ENDINGS))
    if not output.parent.is_dir():
        raise invalid_value("--output", str(output), "in a folder that is there")
    if output.is_dir():
        raise invalid_value("--output", str(output), "a file, not a folder")
    asked: dict[str, Any] = {
        "output": output,
        "model": model,
        "size": size,
        "seed": seed,
        "steps": steps,
        "guidance": guidance,
        "negative_prompt": negative_prompt,
        "picture": picture,
    }
    video = ending == _VIDEO_ENDING
    if video:
        asked["seconds"] = seconds
    elif seconds is not None:
        raise invalid_value("--seconds", seconds, f"absent for an image; a clip is a file that ends in {_VIDEO_ENDING}")
    try:
        asyncio.run(_run(prompt, asked, video=video, url=url, deploy=deploy or ()))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except OSError as error:
        raise StreamSynthError(ErrorCode.INVALID_VALUE, f"{error.filename or output}: {error.strerror}") from None


async def _run(prompt: str, asked: dict[str, Any], *, video: bool, url: str | None, deploy: Sequence[Path]) -> None:
    from streamsynth.api import StreamSynth
    from streamsynth.config.registry import first_video_model

    if url is not None:
        synth = StreamSynth.connect(url)
    elif deploy:
        synth = StreamSynth(*([asked["model"]] if asked["model"] else []), deploy=deploy)
    else:
        kind = "video" if video else "image"
        synth = StreamSynth(asked["model"] or first_video_model(f"{kind}s", lambda traits: kind in traits.kinds))
    line = ProgressLine(sys.stderr)
    async with synth:
        if video:
            clip = await synth.generate_video(prompt, on_progress=line.show, **asked)
            line.end(
                f"{clip.num_frames} pictures of {clip.width}x{clip.height}, {clip.seconds:g} s by {clip.model}, "
                f"seed {clip.seed}: {clip.path}"
            )
        else:
            image = await synth.generate_image(prompt, on_progress=line.show, **asked)
            line.end(f"{image.width}x{image.height}, seed {image.seed}: {image.path}")


class ProgressLine:
    """A line that moves on a terminal; elsewhere a line for each tenth."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._moves = out.isatty()
        self._shown = 0

    def show(self, progress: float) -> None:
        percent = int(100 * progress)
        if self._moves:
            self._out.write(f"\r{percent:3d} %\x1b[K")
        elif percent // 10 > self._shown // 10:
            self._out.write(f"{percent} %\n")
        self._shown = max(self._shown, percent)
        self._out.flush()

    def end(self, text: str) -> None:
        self._out.write(("\r\x1b[K" if self._moves else "") + text + "\n")
        self._out.flush()
