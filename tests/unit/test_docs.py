"""The pages say what the code says."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from streamsynth.config.concerns import CONCERNS

ROOT = Path(__file__).parents[2]


def packages() -> set[str]:
    inner = {f"streamsynth/{path.parent.name}/" for path in (ROOT / "streamsynth").glob("*/__init__.py")}
    return inner | {"streamsynth/", "realtime/", "codecs/", "web/"}


def test_the_folder_table_lists_every_package_once() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    table = text.partition("## Folders")[2].partition("##")[0]
    named = re.findall(r"^\| `([a-z/]+/)` \|", table, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) == packages()


def test_every_file_that_the_page_points_to_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for name in re.findall(r"`((?:streamsynth|realtime|tests|docs)/[a-z_/]+\.(?:py|md))`", text):
        assert (ROOT / name).is_file(), name


def test_the_deploy_page_lists_every_field_with_its_owner_and_default() -> None:
    text = (ROOT / "docs/deploy.md").read_text()
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| ([0-9.]+|\[\]|true|false) \|", text, re.MULTILINE)
    assert [(concern, name, json.loads(default)) for concern, name, default in rows] == [
        (concern, field.name, getattr(owner(), field.name))
        for concern, owner in CONCERNS.items()
        for field in dataclasses.fields(owner)
    ]
