"""How commands write tables: fitted to a terminal, one line a row into a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 400


def print_table(columns: Sequence[str], groups: Iterable[Iterable[Sequence[str | Text]]]) -> None:
    """Write rows of plain text (square brackets mean nothing) to standard output, a rule between two groups."""
    terminal = sys.stdout.isatty()
    table = Table(*columns, header_style="bold")
    for group in groups:
        for row in group:
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
        table.add_section()
    Console(width=None if terminal else _PIPE_COLUMNS, highlight=False).print(table)
