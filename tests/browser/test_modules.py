"""The modules that need no browser, run by node: DSP core, protocol client, models. And that the docs name all."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = sorted((Path(__file__).parent / "modules").glob("*.test.mjs"))


@pytest.mark.parametrize("module", TESTS, ids=lambda path: path.name.removesuffix(".test.mjs"))
def test_module(module: Path) -> None:
    """Each file of tests/browser/modules passes under node (DX-1 to DX-7, S1, S37, S38, S56 ...)."""
    result = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(module)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^ℹ pass [1-9]", result.stdout, re.MULTILINE)


def test_the_documentation_names_every_module_once() -> None:
    files = (ROOT / "docs/ui.md").read_text().partition("## Files")[2]
    named = re.findall(r"`([a-z-]+\.js)`", files)
    assert sorted(named) == sorted(path.name for path in (ROOT / "web").glob("*.js"))
