"""`streamsynth cache`: quantised weights on disk, made ahead, looked at and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamsynth import environment
from streamsynth.console import print_table
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value

if TYPE_CHECKING:
    from streamsynth.engine.quant.cache import Entry, QuantCache

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Quantised weights on disk: ls, build, verify, rm.")

CacheOption = Annotated[Path | None, typer.Option("--cache", metavar="FOLDER", help="Default: below ~/.cache.")]
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="As `cache ls` shows them.")]

_DTYPES = ("bfloat16", "float16", "float32")
_COMPONENT = "streamsynth.models.diffusers.component"
"""Named, not imported: it loads a model library."""


@app.command("ls")
def list_entries(
    cache: CacheOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
) -> None:
    """List what is there; what the files contain is not read."""
    opened = _open(cache)
    with _said_of(opened):
        described = [_describe(entry) for entry in opened.entries()]
    if as_json:
        typer.echo(json.dumps(described, indent=2))
    elif described:
        print_table(list(described[0]), [[[str(value) for value in each.values()] for each in described]])


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(help="A model in diffusers' layout.")],
    component: Annotated[list[str] | None, typer.Option(metavar="NAME", help="May be repeated.")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Linear layers to leave as they are; may be repeated.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of what is not quantised: bfloat16, float16 or float32.")] = "bfloat16",
    device: Annotated[str | None, typer.Option(help="Where weights are quantised; the bytes are the same.")] = None,
    cache: CacheOption = None,
) -> None:
    """Quantise a model's components to float8 and keep them, as a server's first start would."""
    import torch

    from streamsynth.engine.opening import check_device
    from streamsynth.engine.quant.convert import quantise_linears
    from streamsynth.engine.quant.load import finished
    from streamsynth.engine.quant.recipe import Recipe

    if dtype not in _DTYPES:
        raise invalid_value("--dtype", dtype, f"one of {', '.join(_DTYPES)}")
    if device is not None:
        check_device(device, "--device")
    recipe, opened = Recipe(ignored=tuple(ignore or ())), _open(cache)
    for name in component or ["transformer"]:
        source = import_module(_COMPONENT).component_source(folder, name, getattr(torch, dtype))

        def make(source: Any = source) -> Any:
            module = source.full()
            return finished(module, quantise_linears(module, recipe, device))

        with _said_of(opened):
            wanted = source.wanted(recipe, opened, fresh=True)
            made = opened.build(wanted, make)
        typer.echo(f"{wanted.folder}: {len(made.layers)} float8 layers, {made.nbytes / 1e6:.1f} MB")


@app.command()
def verify(names: NamesArgument = None, cache: CacheOption = None) -> None:
    """Read every byte of artifacts, and of their sources where they are; exit status 1 if anything is wrong."""
    opened = _open(cache)
    wrong = 0
    for entry in _named(opened, names):
        with _said_of(opened):
            fault = opened.verify(entry)
        typer.echo(f"{entry.folder.name}: {fault or 'intact'}")
        wrong += fault is not None
    if wrong:
        raise typer.Exit(1)


@app.command("rm")
def remove(
    names: NamesArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    cache: CacheOption = None,
) -> None:
    """Remove artifacts; a server that has one open keeps it until it ends."""
    if bool(names) == everything:
        raise invalid_value("NAME", names or [], "what to remove, or --all instead")
    opened = _open(cache)
    for entry in _named(opened, names):
        with _said_of(opened):
            opened.remove(entry)
        typer.echo(f"{entry.folder.name}: removed")


def _open(folder: Path | None) -> QuantCache:
    from streamsynth.engine.quant.cache import QuantCache

    root = folder or environment.cache_folder() / "quantised"
    if root.exists() and not root.is_dir():
        raise invalid_value("--cache", str(root), "a folder, or nothing yet")
    return QuantCache(root)


@contextmanager
def _said_of(cache: QuantCache) -> Iterator[None]:
    """What the disk refuses is one line, with the file's name."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        raise StreamSynthError(ErrorCode.INVALID_VALUE, f"{error.filename or cache.root}: {error.strerror}") from None


def _named(cache: QuantCache, names: Sequence[str] | None) -> list[Entry]:
    """All, where none is named."""
    with _said_of(cache):
        entries = {entry.folder.name: entry for entry in cache.entries()}
    for name in names or ():
        if name not in entries:
            raise invalid_value("NAME", name, f"one that is in {cache.root}")
    return [entries[name] for name in names or entries]


def _describe(entry: Entry) -> dict[str, Any]:
    made = entry.manifest
    return {
        "name": entry.folder.name,
        "MB": None if made is None else round(made.nbytes / 1e6, 1),
        "float8 layers": None if made is None else len(made.layers),
        "made from": None if made is None else made.origin,
        "state": entry.damage or "complete",
    }
