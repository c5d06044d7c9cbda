"""Whole clips and images as a program asks for them: the same over a server and over the models of this process."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import secrets
import tempfile
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value

OnProgress: TypeAlias = Callable[[float], None]
"""Hears from 0 to 1 how far it is."""

IMAGE_FORMATS: Mapping[str, str] = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}
"""File ending -> an image's format."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GeneratedVideo:
    """A finished clip: an mp4 in the file `path`, or in memory where no `output` was named. `seed` makes it again."""

    model: str
    width: int
    height: int
    fps: int
    num_frames: int
    seed: int
    path: Path | None = None
    data: bytes | None = None

    @property
    def seconds(self) -> float:
        return self.num_frames / self.fps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GeneratedImage:
    """A finished picture as a file's bytes, which were also written to `path` where an `output` was named."""

    data: bytes
    format: str
    width: int
    height: int
    seed: int
    path: Path | None = None


class Generator(Protocol):
    """Where clips and images come from. `fields` are those of `/v1/videos` and `/v1/images/generations`."""

    async def video(self, fields: Mapping[str, Any], path: Path, on_progress: OnProgress) -> GeneratedVideo:
        """Write the clip to `path`, which appears when it is whole. Cancelled, it leaves nothing."""

    async def image(self, fields: Mapping[str, Any], on_progress: OnProgress) -> GeneratedImage: ...


def unfinished(path: Path) -> Path:
    """Where a file is written until it is whole: beside its place, another one each time, for two may make the same."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def check_place(path: Path) -> None:
    """Before the work rather than behind it: whether a file can appear there. Blocks; raises OSError."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))


def write_whole(path: Path, data: bytes) -> None:
    """The file appears when it is whole. Blocks; raises OSError."""
    part = unfinished(path)
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def fields_of(picture: bytes | str | Path | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given, which JSON can carry. Blocks where the picture is a file: raises OSError."""
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid_value(name, value, "a finite number")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise invalid_value(name, value, "free of lone surrogates")
    if picture is not None:
        data = picture if isinstance(picture, bytes) else Path(picture).read_bytes()
        if not data:
            message = "input_reference must be a PNG, JPEG or WebP file, and is empty"
            raise StreamSynthError(ErrorCode.UNSUPPORTED_REFERENCE, message, param="input_reference")
        given["input_reference"] = b64encode(data).decode()
    return given


def image_format(output: Path | None, format: str | None) -> str:  # noqa: A002 - the word for it
    """What was asked for, by name or by the file's ending; png where nobody says. Raises INVALID_VALUE where the two
    say different things."""
    said = None if output is None else IMAGE_FORMATS.get(output.suffix.lower())
    if format is not None:
        if said is not None and format != said and format in IMAGE_FORMATS.values():
            raise invalid_value("format", format, f"{said}, or absent, as the name {str(output)[-40:]!r} ends")
        return format
    if output is not None and said is None:
        raise invalid_value("output", str(output), "a file that ends in " + ", ".join(IMAGE_FORMATS))
    return said or "png"


async def make_video(
    generator: Generator,
    picture: bytes | str | Path | None,
    fields: dict[str, Any],
    output: str | Path | None,
    on_progress: OnProgress | None,
) -> GeneratedVideo:
    """What `StreamSynth.generate_video` does once it is running."""
    given = await asyncio.to_thread(fields_of, picture, fields)
    if output is not None:
        await asyncio.to_thread(check_place, Path(output))
        if Path(output).suffix.lower() != ".mp4":
            raise invalid_value("output", str(output), "a file that ends in .mp4")
        return await generator.video(given, Path(output), on_progress or _unheard)
    with tempfile.TemporaryDirectory(prefix="streamsynth-") as folder:
        path = Path(folder) / "clip.mp4"
        made = await generator.video(given, path, on_progress or _unheard)
        return replace(made, path=None, data=await asyncio.to_thread(path.read_bytes))


async def make_image(
    generator: Generator,
    picture: bytes | str | Path | None,
    fields: dict[str, Any],
    path: Path | None,
    on_progress: OnProgress | None,
) -> GeneratedImage:
    """What `StreamSynth.generate_image` does once it is running."""
    given = await asyncio.to_thread(fields_of, picture, fields)
    if path is not None:
        await asyncio.to_thread(check_place, path)
    made = await generator.image(given, on_progress or _unheard)
    if path is not None:
        await asyncio.to_thread(write_whole, path, made.data)
    return replace(made, path=path)


def _unheard(_: float) -> None:
    """Nobody asked."""
