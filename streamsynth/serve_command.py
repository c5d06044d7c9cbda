"""`streamsynth serve`: what was typed becomes settings, and the server runs until it is told to stop."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamsynth import environment
from streamsynth.config.deployment import check_threads
from streamsynth.config.plan import plan
from streamsynth.config.show import DeployOption, ModelOption, SetOption
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value

if TYPE_CHECKING:
    from streamsynth.realtime.limits import Limits

app = typer.Typer(add_completion=False)


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _folder(typed: str) -> Path:
    """An empty name would be the current folder: a variable that was not set."""
    if not typed:
        raise invalid_value("--data", typed, "the name of a folder")
    return Path(typed)


@app.command()
def serve(
    model: ModelOption = None,
    deploy: DeployOption = None,
    sets: SetOption = None,
    host: Annotated[str, typer.Option(help="Other addresses than loopback need API keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys that clients must send, one a line, beside STREAMSYNTH_API_KEYS."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Serve https with this certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key.")] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="A page that may call this server; may be repeated.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Change a limit that /v1/limits shows; may be repeated."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=_folder,
            help="Where the videos of /v1/videos are kept; the default is a folder of this port's.",
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged, on standard error.")] = LogLevel.INFO,
) -> None:
    """Run the server: HTTP, WebSocket and the page in the browser.

    Prints "listening on URL" when every model is ready. SIGTERM or Ctrl-C lets what is running finish.
    """
    deployments = plan(model or (), deploy or (), sets or ())
    check_threads(deployments, len(os.sched_getaffinity(0)))
    keys = (*environment.api_keys(), *(_read_keys(api_key_file) if api_key_file else ()))
    from streamsynth.realtime.settings import ServerSettings

    settings = ServerSettings(
        host=host,
        port=port,
        api_keys=keys,
        cors_origins=tuple(cors_origin or ()),
        tls_cert=tls_cert,
        tls_key=tls_key,
        limits=_limits(limit or ()),
        data=data,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=log_level.value.upper())

    import asyncio

    from streamsynth.realtime.serve import serve as run

    asyncio.run(run(deployments, settings, on_ready=_announce))


def _announce(url: str) -> None:
    typer.echo(f"listening on {url}")


def _read_keys(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        message = f"--api-key-file {path}: cannot be read: {reason}"
        raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="api_key_file") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        message = f"--api-key-file {path}: holds no key"
        raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="api_key_file")
    return keys


def _limits(typed: Sequence[str]) -> Limits:
    """The defaults, with what was typed over them."""
    from streamsynth.config.deploy_file import parse_value
    from streamsynth.realtime.limits import Limits

    known = Limits().published()
    values: dict[str, Any] = {}
    for text in typed:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise invalid_value("--limit", text, "NAME=VALUE with one of " + ", ".join(known))
        if name in values:
            raise invalid_value("--limit", text, f"given once for {name}")
        values[name] = parse_value(value, f"--limit {name}")
    return Limits(**values)
