"""Ranks that share a model through NCCL, one on each device. Needs two devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.gpus]
TESTS = Path(__file__).parents[1]


def test_every_device_gets_its_own_request_as_if_alone(tmp_path: Path) -> None:
    """DL-1, DL-7, T6.10: closed, each device has the whole model, and gives the same bits."""
    size = torch.cuda.device_count()
    assert size > 1
    ranks = [
        subprocess.Popen(
            [sys.executable, "sharing_rank.py", str(rank), str(size), str(tmp_path / "store"), "lives", "cuda"],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = []
    for rank in ranks:
        out, err = rank.communicate(timeout=240)
        assert rank.returncode == 0, err
        said.append(json.loads(out.splitlines()[-1]))
    for number, found in enumerate(said):
        assert found["all 0"]["result"] == found["after all that"]["result"] == found["closed"]
        assert found["block 2 fails"]["failed"] == [size - 1]
        assert (found["block 2 fails"]["error"] is None) == (number < size - 1)
        assert found["steps differ"] == "invalid_value"
    assert len({rank["auto"] for rank in said}) == 1
