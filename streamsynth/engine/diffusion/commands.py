"""What the ranks of a stage say to each other about clips."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import torch

from streamsynth.engine.diffusion.clip import Clip
from streamsynth.engine.offload.ranks import MAX_WORD_BYTES
from streamsynth.engine.stream import as_error
from streamsynth.errors import StreamSynthError

# From rank 0.


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    clip: int
    replica: int
    request: dict[str, Any]


class Advance(msgspec.Struct, frozen=True, array_like=True, tag="advance"):
    """One step of each of these clips; ranks with none of them take part all the same."""

    clips: tuple[int, ...]


class Deliver(msgspec.Struct, frozen=True, array_like=True, tag="deliver"):
    """Send the clip's pictures: rank 0 is receiving them."""

    clip: int


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    clip: int


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """The stage is over."""


Command: TypeAlias = Begin | Advance | Deliver | Close | End


class Report(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a rank tells the others of its clip after a step. `pictures`: the shape of those that are made."""

    step: int = 0
    steps: int = 0
    pictures: tuple[int, ...] | None = None
    error: dict[str, Any] | None = None
    out_of_memory: bool = False


NOTHING = Report()


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a replica that goes its own way tells rank 0 of a clip; without a report, it has let go of it."""

    clip: int
    report: Report | None = None


encode = msgspec.msgpack.encode
decode_report = msgspec.msgpack.Decoder(Report).decode
decode_told = msgspec.msgpack.Decoder(Told).decode
_commands = msgspec.msgpack.Decoder(Command)


def decode_command(said: bytes) -> Command:
    return _commands.decode(said)


def report_of(clip: Clip) -> Report:
    """No longer than what ranks exchange."""
    if clip.error is None:
        shape = None if clip.pictures is None else tuple(clip.pictures.shape)
        return Report(clip.step, clip.steps, shape)
    error = as_error(clip.error)
    fields = error.to_wire()
    fields["message"] = error.message.encode()[: MAX_WORD_BYTES // 2].decode(errors="ignore")
    return Report(clip.step, clip.steps, None, fields, isinstance(clip.error, torch.OutOfMemoryError))


def error_of(report: Report) -> Exception | None:
    if report.error is None:
        return None
    error = StreamSynthError.from_wire(report.error)
    return torch.OutOfMemoryError(error.message) if report.out_of_memory else error
