"""The pages' files: shared parts stand in each page, and each page marks the link to itself."""

from __future__ import annotations

import re

from streamsynth.realtime.page import load_page


def test_every_page_has_the_shared_parts_and_marks_itself_alone() -> None:
    files = load_page()
    pages = {path: file.body.decode() for path, file in files.items() if path.endswith(".html")}
    assert set(pages) == {"/index.html", "/video.html", "/gallery.html"}
    for path, text in pages.items():
        marked = re.findall(r'<a href="([^"]+)" aria-current="page">', text)
        assert marked == ["./" if path == "/index.html" else path[1:]]
        assert text.count('id="key-dialog"') == 1 and ".part.html" not in text


def test_the_index_is_the_root_and_parts_are_no_pages() -> None:
    files = load_page()
    assert files["/"] is files["/index.html"]
    assert not [path for path in files if "part" in path]
