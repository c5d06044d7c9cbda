"""The browser page: which files it is made of, and under which path each is served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_MIME_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file of the page and the `Content-Type` it is served with."""

    path: Path
    mime: str


def static_files() -> Mapping[str, StaticFile]:
    """Every file of the page by its URL path; `/` is the page itself. Reads the directory, so call it once at start."""
    here = Path(__file__).parent
    files = {
        f"/{path.name}": StaticFile(path, _MIME_TYPES[path.suffix])
        for path in sorted(here.iterdir())
        if path.suffix in _MIME_TYPES
    }
    files["/"] = files.pop("/index.html")
    return MappingProxyType(files)
