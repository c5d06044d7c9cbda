"""The page's modules that need no browser, run by node: DSP core, protocol client, models."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

MODULES = sorted((Path(__file__).parent / "modules").glob("*.test.mjs"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name.removesuffix(".test.mjs"))
def test_module(module: Path) -> None:
    """Each file of tests/browser/modules passes under node (DX-1 to DX-7, S1, S37, S38, S56 ...)."""
    result = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(module)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "ℹ pass 0" not in result.stdout
