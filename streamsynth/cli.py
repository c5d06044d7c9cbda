"""The command line: a table of commands, each loaded when it is called. Errors are one line, and exit status 2."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from streamsynth.console import give_up_output
from streamsynth.errors import StreamSynthError
from streamsynth.extras import missing_extra


class _Entry(NamedTuple):
    """Where a command's typer application is ("module:attribute"), and its line in `streamsynth --help`."""

    app: str
    help: str


_COMMANDS: Mapping[str, _Entry] = {
    "serve": _Entry("streamsynth.serve_command:app", "Run the server: HTTP, WebSocket and the page in the browser."),
    "speak": _Entry("streamsynth.speak_command:app", "Speak a text: to the speakers, a file or a pipe."),
    "video": _Entry("streamsynth.video_command:app", "Make a video and steer it: to a file or a pipe."),
    "generate": _Entry("streamsynth.generate_command:app", "Make a whole clip or an image: an mp4, png or jpg file."),
    "models": _Entry("streamsynth.config.models:app", "List the models; `models convert` turns a checkpoint into one."),
    "config": _Entry("streamsynth.config.show:app", "Show what every field of a deployment is, and who set it."),
    "doctor": _Entry("streamsynth.doctor:app", "Try out what StreamSynth needs from this machine."),
    "cache": _Entry("streamsynth.cache_command:app", "Quantised weights on disk: list, build, verify, remove."),
    "bench": _Entry("streamsynth.bench.command:app", "Measure: speech, the wire between processes, many sessions."),
}


class _LazyGroup(TyperGroup):
    """Shows the table without importing anything from it; imports one command's module when that command is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, _load(name), rest


def _load(name: str | None) -> Any:
    module, _, attribute = _COMMANDS[name or ""].app.partition(":")
    return get_command(getattr(import_module(module), attribute))


def main(args: list[str] | None = None) -> None:
    """Run one command with `args` (default: those of this process) and exit."""
    group = _LazyGroup(
        name="streamsynth",
        help="Speech and video that leave the machine while they are still being made.",
        commands={name: TyperCommand(name, help=entry.help) for name, entry in _COMMANDS.items()},
        no_args_is_help=True,
    )
    _open_what_is_closed()
    told = _end_politely()
    try:
        group(args, prog_name="streamsynth")
    except StreamSynthError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except ImportError as error:
        missing = missing_extra(error, "this command")
        if missing is None:
            raise
        typer.echo(f"error: {missing}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            give_up_output()
        elif error.filename is None:
            raise
        typer.echo(f"error: {error.filename or 'standard output'}: {error.strerror}", err=True)
        sys.exit(2)
    except SystemExit as ending:
        if told and ending.code == 128 + signal.SIGINT:
            sys.exit(128 + told[0])
        raise


def _open_what_is_closed() -> None:
    """Standard streams that the caller closed are None, and their numbers would go to the next files opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as the process


def _end_politely() -> list[int]:
    """Let SIGTERM and a closing terminal end a command as Ctrl-C does, with its files whole; `serve` has its own way.
    What was told is in the list."""
    told: list[int] = []

    def end(number: int, _frame: object) -> None:
        told.append(number)
        signal.raise_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)
    return told
