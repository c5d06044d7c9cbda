"""These tests import Triton: a selection that leaves the marker out does not even collect them."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if "not gpu" in config.option.markexpr else None
