"""`streamsynth config show`: the effective value of every field, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from streamsynth.config.deployment import Deployment
from streamsynth.config.plan import plan
from streamsynth.config.unset import UNSET

app = typer.Typer(no_args_is_help=True, add_completion=False)

ModelOption = Annotated[
    list[str] | None, typer.Option("--model", metavar="NAME", help="A model to run; may be given several times.")
]
DeployOption = Annotated[
    list[Path] | None,
    typer.Option("--deploy", metavar="FILE", help="A deploy file, for the pipeline that it names; may be repeated."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="STAGE.FIELD=VALUE", help="Set one field over the deploy file; may be repeated."),
]


@app.callback()
def config() -> None:
    """Show what every field of a deployment is, and who set it."""


@app.command()
def show(
    model: ModelOption = None,
    deploy: DeployOption = None,
    sets: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
) -> None:
    """Show each field's effective value and where it came from. Starts nothing.

    Precedence: --set, then the deploy file, then the pipeline, then the default.
    """
    rows = [row for deployment in plan(model or (), deploy or (), sets or ()) for row in _rows(deployment)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print_table(rows)


def _rows(deployment: Deployment) -> Iterator[dict[str, Any]]:
    for name, stage in deployment.stages.items():
        for field in stage.effective_fields():
            row = {"model": deployment.pipeline.name, "stage": name, "concern": field.concern, "field": field.name}
            if field.value is not UNSET:
                row["value"] = field.value
            yield {**row, "from": field.origin}


def _print_table(rows: list[dict[str, Any]]) -> None:
    from streamsynth.console import print_table

    groups = groupby(rows, key=lambda row: (row["model"], row["stage"]))
    columns = ("model", "stage", "concern", "field", "value", "from")
    print_table(columns, ((_cells(row) for row in group) for _, group in groups))


def _cells(row: dict[str, Any]) -> list[str]:
    value = json.dumps(row["value"]) if "value" in row else "(left to the engine)"
    return [row["model"], row["stage"], row["concern"], row["field"], value, row["from"]]
