"""The browser UI's files, held in memory: read once, in a thread, before the server accepts anybody."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from aiohttp import web

_CONTENT_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
INDEX = "index.html"
_PART = ".part.html"
_PART_PLACE = re.compile(r"^ *<!-- ([a-z-]+\.part\.html) -->\n", re.MULTILINE)

# No inline script, nothing from elsewhere; the page talks to its own server and plays what it makes itself.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    content_type: str
    etag: str


def load_page() -> dict[str, PageFile]:
    """The pages' files by URL path. Blocks.

    What the pages have in common is written once, in files called NAME.part.html, and stands in each page where a
    comment names it.
    """
    files = {}
    folder = resources.files("streamsynth.web")
    for entry in folder.iterdir():
        kind = entry.name.rpartition(".")[2]
        if entry.is_file() and kind in _CONTENT_TYPES and not entry.name.endswith(_PART):
            body = _assemble(entry, folder) if kind == "html" else entry.read_bytes()
            file = PageFile(body, _CONTENT_TYPES[kind], hashlib.sha256(body).hexdigest()[:32])
            files[f"/{entry.name}"] = file
            if entry.name == INDEX:
                files["/"] = file
    return files


def _assemble(page: Traversable, folder: Traversable) -> bytes:
    """The page with its parts in their places, and the link to itself marked."""
    text = _PART_PLACE.sub(lambda place: folder.joinpath(place[1]).read_text("utf-8"), page.read_text("utf-8"))
    link = f'<a href="{"./" if page.name == INDEX else page.name}"'
    return text.replace(f"{link}>", f'{link} aria-current="page">').encode()


def serve_file(file: PageFile) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler for one file; it is revalidated each time, so a page is never older than its server."""

    async def handler(request: web.Request) -> web.Response:
        known = {tag.value for tag in request.if_none_match or ()}
        unchanged = bool(known & {file.etag, "*"})
        response = web.Response(status=304) if unchanged else web.Response(body=file.body)
        if not unchanged:
            response.headers["Content-Type"] = file.content_type
        response.etag = file.etag
        response.headers["Cache-Control"] = "no-cache"
        response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    return handler
