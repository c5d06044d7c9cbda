"""What commands share: tables, drawn on a terminal and as tab-separated lines into a pipe, the end of writing, and what
is refused beside --url."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from streamsynth.errors import invalid_value

Rows = Iterable[Sequence[str]]


def give_up_output() -> None:
    """Nobody reads standard output, or it takes nothing more; nor may the interpreter try to flush at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse_beside_url(url: str | None, options: Mapping[str, object]) -> None:
    """`options` say how models of our own are started: raises INVALID_VALUE for one that is given where a server has
    its own."""
    for name, value in options.items() if url is not None else ():
        if value is not None:
            raise invalid_value(name, value, "absent with --url: the server there was started with its own settings")


def print_table(columns: Sequence[str], groups: Iterable[Rows], styles: Mapping[str, str] | None = None) -> None:
    """Write rows of plain text to standard output, a rule between two groups. `styles`: cell text to its colour."""
    if sys.stdout.isatty():
        _draw(columns, groups, styles or {})
    else:
        rows = [columns, *(row for group in groups for row in group)]
        sys.stdout.writelines("\t".join(cell.replace("\n", " ") for cell in row) + "\n" for row in rows)


def _draw(columns: Sequence[str], groups: Iterable[Rows], styles: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, header_style="bold")
    for group in groups:
        for row in group:
            table.add_row(*(Text(cell, styles.get(cell, "")) for cell in row))
        table.add_section()
    Console(highlight=False).print(table)
